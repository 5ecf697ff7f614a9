"""What a program may rely on, whichever world it runs in: every test here runs locally (both modes) and under MPI."""

import time

import numpy as np
import pytest
from backends import BACKENDS, device_array
from numpy.testing import assert_array_equal

from refimpl import Ledger, UndeliveredMessageError, run
from refimpl.arrays import array_namespace, is_device, to_host
from refimpl.collectives import all_reduce

DTYPES = ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64", "complex128"]
SHAPES = [(), (0,), (5,), (0, 3), (2, 3, 4)]
LARGE = 300_000                                        # elements: more than any MPI keeps on the way by itself


def around(comm):
    """The rank's right and left neighbour."""
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def numbers(shape, dtype, rank=0):
    """An array that tells from which rank it is."""
    return (np.arange(np.prod(shape)).reshape(shape) % 7 + rank).astype(dtype)


# -- arrays -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("P", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_shape_and_dtype_arrive(P, world, xp, dtype):
    def program(comm):
        right, left = around(comm)
        for shape in SHAPES:
            x, out = device_array(xp, numbers(shape, dtype, comm.rank)), xp.zeros(shape, dtype)
            expected = numbers(shape, dtype, left)
            for y in (comm.sendrecv(x, right, left), comm.sendrecv(x, right, left, out=out)):
                assert array_namespace(y) is xp and y.dtype == dtype and y.shape == shape
                assert_array_equal(to_host(y), expected)
            assert y is out

    run(program, P)


@pytest.mark.parametrize("P", [2])
def test_A03_memory_order_does_not_show(P, world, xp):
    """numba-mpi PR #31: MPI sends memory as it lies, so a column-major matrix would arrive transposed."""
    views = {"Fortran": lambda x: x.copy(order="F"), "every other row": lambda x: x[::2], "transposed": lambda x: x.T,
             "every other column": lambda x: x[:, ::2], "backwards": lambda x: x[::-1, ::-1],
             "repeated": lambda x: xp.broadcast_to(x[0], x.shape)}
    plain = np.arange(24.0).reshape(4, 6)

    def program(comm):
        right, left = around(comm)
        for name, view in views.items():
            x, expected = view(device_array(xp, plain + comm.rank)), to_host(view(device_array(xp, plain + left)))
            y = comm.sendrecv(x, right, left)
            assert y.flags.c_contiguous, name
            assert_array_equal(to_host(y), expected, name)
            if name != "repeated":
                room = view(xp.zeros(plain.shape))                   # received into memory that is just as irregular
                assert comm.sendrecv(x, right, left, out=room) is room
                assert_array_equal(to_host(room), expected, name)

    run(program, P)


@pytest.mark.parametrize("P", [2])
@pytest.mark.parametrize("algorithm", ["ring", "doubling"])
def test_A03_a_sum_of_column_major_matrices_is_not_transposed(P, world, xp, algorithm):
    def program(comm):
        a = device_array(xp, np.asfortranarray(np.arange(6.0).reshape(2, 3))) * (comm.rank + 1)
        return [to_host(all_reduce(a.copy(order="F"), comm, algorithm=algorithm, out=out))
                for out in (None, xp.zeros((2, 3)), xp.zeros((3, 2)).T)]

    for results in run(program, P):
        for y in results:
            assert_array_equal(y, [[0, 3, 6], [9, 12, 15]])


@pytest.mark.parametrize("P", [2, 3])
def test_one_buffer_may_be_sent_and_received_into_at_once(P, world, xp):
    def program(comm):
        right, left = around(comm)
        x = device_array(xp, numbers((LARGE,), "float64", comm.rank))
        comm.sendrecv(x, right, left, out=x)
        assert_array_equal(to_host(x), numbers((LARGE,), "float64", left))
        comm.sendrecv(x[:-1], right, left, out=x[1:])                # parts of one buffer, too
        assert_array_equal(to_host(x)[1:], numbers((LARGE,), "float64", (left - 1) % P)[:-1])

    run(program, P)


@pytest.mark.parametrize("P", [2])
def test_what_is_received_is_the_receivers_own(P, world):
    def program(comm):
        x = np.arange(3.0)
        if comm.rank == 0:
            comm.send(x, 1)
            x[:] = -1                                                # too late to change the message
            request = comm.isend(x, 1)
            request.wait()
            x[:] = -2
            assert_array_equal(comm.recv(1), [9, 9, 9])
            assert_array_equal(x, [-2, -2, -2])
        else:
            first, second = comm.recv(0), comm.recv(0)
            assert_array_equal(first, [0, 1, 2])
            assert_array_equal(second, [-1, -1, -1])
            second[:] = 9
            comm.send(second, 0)

    run(program, P)


@pytest.mark.parametrize("P", [2])
def test_lists_and_numbers_become_arrays(P, world):
    given = [3, 2.5, True, 1j, np.float32(1.5), np.int16(-1), [1, 2, 3], (0.5, 1.5), [[1], [2]], [], np.ma.array([1])]

    def program(comm):
        right, left = around(comm)
        for x in given:
            y = comm.sendrecv(x, right, left)
            assert type(y) is np.ndarray and y.dtype == np.asarray(x).dtype
            assert_array_equal(y, np.asarray(x))

    run(program, P)


NOT_NUMBERS = [None, "text", b"bytes", [1, "a"], np.array([object()]), np.array(["a"]), 2**70, {},
               np.array(["2026-01-01"], "datetime64[D]"), np.zeros(2, [("a", "f4")])]


@pytest.mark.parametrize("P", [2])
def test_what_is_not_numbers_is_refused_before_anything_is_sent(P, world):
    log = Ledger()

    def program(comm):
        right, left = around(comm)
        for x in NOT_NUMBERS:
            for call in (comm.send, comm.isend, lambda x, dst: comm.sendrecv(x, dst, left)):
                with pytest.raises(ValueError, match="dtype .* cannot be sent: only booleans, integers"):
                    call(x, right)
        with pytest.raises(ValueError, match=r"dtype >f8 has the other byte order: send x.astype"):
            comm.send(np.arange(3, dtype=">f8"), right)
        with pytest.raises(ValueError, match="inhomogeneous"):
            comm.send([[1], [2, 3]], right)

    run(program, P, ledger=log)
    assert log.messages() == 0


@pytest.mark.parametrize("P", [2])
@pytest.mark.parametrize("out, says", [
    (np.zeros(4), r"shape \(3,\) and dtype float64, but out has shape \(4,\) and dtype float64"),
    (np.zeros((3, 1)), r"shape \(3,\) .* out has shape \(3, 1\)"),
    (np.zeros(3, "float32"), "dtype float64, but out has .* dtype float32"),
    (device_array(BACKENDS["cupy stand-in"], np.zeros(3)), "an array of numpy, but out is one of fake_cupy"),
])
def test_a_message_that_does_not_fit_out_is_refused(P, world, out, says):
    def program(comm):
        right, left = around(comm)
        request = comm.isend(np.arange(3.0), right)
        receiving = comm.irecv(left, out=out)
        for _ in range(2):                                           # asked again, it says the same
            with pytest.raises(ValueError, match=says):
                receiving.wait()
        request.wait()
        raise ArithmeticError("as expected")

    with pytest.raises(ArithmeticError, match="expected"):           # else: a message that was never received
        run(program, P)


@pytest.mark.parametrize("P", [2])
def test_out_is_an_array(P, world):
    with pytest.raises(ValueError, match=r"out=\[0, 0, 0\] is not an array"):
        run(lambda comm: comm.recv(0, out=[0, 0, 0]), P)


@pytest.mark.parametrize("P", [2])
def test_a_device_array_is_not_received_into_host_memory(P, world):
    def program(comm):
        comm.sendrecv(device_array(BACKENDS["cupy stand-in"], np.zeros(3)), *around(comm), out=np.zeros(3))

    with pytest.raises(ValueError, match="of rank . of world is an array of fake_cupy, but out is one of numpy"):
        run(program, P)


# -- order ------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("P", [2, 4])
def test_requests_may_be_waited_for_in_any_order_and_twice(P, world):
    def program(comm):
        right, left = around(comm)
        receives = [comm.irecv(left, tag=k // 2) for k in range(6)]  # two messages for each of three tags
        sends = [comm.isend(np.full(k + 1, k), right, tag=k // 2) for k in range(6)]
        for k in (5, 0, 3, 3, 1, 2, 4, 0):
            assert_array_equal(receives[k].wait(), np.full(k + 1, k))
        for request in sends + sends:
            assert request.wait() is None
        assert receives[2].wait() is receives[2].wait()

    run(program, P)


@pytest.mark.parametrize("P", [2])
def test_a_tag_picks_its_own_messages_in_the_order_in_which_they_were_sent(P, world):
    def program(comm):
        if comm.rank == 0:
            requests = [comm.isend([tag, k], 1, tag=tag) for k in range(3) for tag in (0, 7, 2**20)]
            for request in requests:
                request.wait()
        else:
            got = [comm.recv(0, tag=tag).tolist() for tag in (2**20, 0, 7) for _ in range(3)]
            assert got == [[tag, k] for tag in (2**20, 0, 7) for k in range(3)]

    run(program, P)


@pytest.mark.parametrize("P", [1, 2, 3])
def test_a_receive_posted_first_lets_everybody_send_at_once(P, world):
    """Large messages move only once they are asked for: the posted receive must do that while its rank sends."""
    def program(comm):
        right, left = around(comm)
        receive, other = comm.irecv(left), comm.irecv(left, tag=1)
        comm.send(numbers((LARGE,), "float64", comm.rank), right)
        comm.send(numbers((LARGE,), "float32", comm.rank), right, tag=1)
        assert_array_equal(other.wait(), numbers((LARGE,), "float32", left))
        assert_array_equal(receive.wait(), numbers((LARGE,), "float64", left))

    run(program, P)


@pytest.mark.parametrize("P", [2, 3])
def test_a_receive_may_be_pending_while_the_rank_is_in_a_collective_or_a_split(P, world):
    def program(comm):
        right, left = around(comm)
        receives = [comm.irecv(left, tag=tag) for tag in range(3)]
        comm.send(numbers((LARGE,), "float64", comm.rank), right, tag=0)
        assert_array_equal(all_reduce(np.ones(3), comm), np.full(3, P))
        comm.send(numbers((LARGE,), "float64", comm.rank), right, tag=1)
        sub = comm.split(0)
        comm.send(numbers((LARGE,), "float64", comm.rank), right, tag=2)
        sub.barrier()
        with comm.collective("mine"):                                # also one that it is no part of
            for receive in receives:
                assert_array_equal(receive.wait(), numbers((LARGE,), "float64", left))

    run(program, P)


@pytest.mark.parametrize("P", [2, 3])
@pytest.mark.parametrize("algorithm", ["auto", "ring"])              # under MPI: its own all-reduce, and streams
def test_a_receive_may_be_pending_while_the_rank_is_in_a_call_without_headers(P, algorithm, world, monkeypatch):
    """The sender comes to the collective only when its message is received: it must be, inside the collective."""
    monkeypatch.setenv("REFIMPL_CHECK", "0")

    def program(comm):
        x, (right, left) = numbers((LARGE,), "float64", comm.rank), around(comm)
        receive = comm.irecv(left) if left % 2 == 0 else None
        if comm.rank % 2 == 0:
            comm.send(x, right)
        total = all_reduce(x, comm, algorithm=algorithm, out=np.empty(LARGE))
        assert_array_equal(total, sum(numbers((LARGE,), "float64", rank) for rank in range(P)))
        if receive is not None:
            assert_array_equal(receive.wait(), numbers((LARGE,), "float64", left))

    run(program, P)


@pytest.mark.parametrize("P", [2])
def test_a_send_that_nobody_waits_for_arrives_all_the_same(P, world):
    def program(comm):
        right, left = around(comm)
        comm.isend(numbers((LARGE,), "float64", comm.rank), right)   # the array is gone but for the message
        junk = np.full(LARGE, -1.0)
        got = comm.recv(left)
        assert junk[0] == -1
        return got

    for rank, got in enumerate(run(program, P)):
        assert_array_equal(got, numbers((LARGE,), "float64", (rank - 1) % P))


@pytest.mark.parametrize("P", [1, 2, 3, 4, 7])
def test_nobody_leaves_a_barrier_before_all_are_there_and_it_takes_lg_P_empty_messages(P, world):
    def program(comm):
        comm.barrier()
        time.sleep(0.002 * comm.rank)
        here = time.monotonic()
        comm.barrier()
        return here, time.monotonic()

    log = Ledger()
    times = run(program, P, ledger=log)
    assert max(here for here, _ in times) <= min(left for _, left in times)
    assert [log.messages(rank=r, collective="barrier") for r in range(P)] == [2 * (P - 1).bit_length()] * P
    assert log.bytes_sent() == 0


# -- addresses --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("P", [3])
def test_ranks_and_tags_may_be_any_kind_of_whole_number(P, world):
    def program(comm):
        right, left = around(comm)
        for kind in (np.int64, np.uint8, np.array):
            y = comm.sendrecv(comm.rank, kind(right), kind(left), tag=kind(5))
            assert y == left

    run(program, P)


@pytest.mark.parametrize("P", [3])
def test_a_rank_or_tag_that_cannot_be_is_refused_and_named(P, world):
    def program(comm):
        for bad in (3, -1, 1.0, "1", None, np.float64(1), np.int64(7)):
            for which, call in (("dst", comm.send), ("dst", comm.isend)):
                with pytest.raises(ValueError) as error:
                    call([1], bad)
                assert f"{which}={bad!r} is not a rank of world: it has ranks 0 to 2" in str(error.value)
            with pytest.raises(ValueError, match="src=.* is not a rank of world: it has ranks 0 to 2"):
                comm.recv(bad)
        for bad in (-1, 2**20 + 1, 0.0, "a", None, np.int64(-5)):
            for call in (lambda tag: comm.send([1], 0, tag=tag), lambda tag: comm.recv(0, tag=tag)):
                with pytest.raises(ValueError) as error:
                    call(bad)
                assert f"tag={bad!r}: must be a whole number from 0 to 1048576" in str(error.value)

    run(program, P)


# -- groups, generators, results --------------------------------------------------------------------------------------

@pytest.mark.parametrize("P", [4])
def test_split_makes_groups_by_color_ordered_by_key_then_rank(P, world):
    def program(comm):
        odd = comm.split(np.int64(comm.rank % 2), -comm.rank, name="odd")
        alone = comm.split(None if comm.rank == 2 else 10 - comm.rank // 3)
        same_key = comm.split(7, name="all")
        neighbour = odd.sendrecv(comm.rank, *around(odd))
        assert (odd.name, odd.size, same_key.ranks) == ("odd", 2, (0, 1, 2, 3))
        return odd.rank, odd.ranks, int(neighbour), alone and (alone.name, alone.ranks)

    assert run(program, P) == [(1, (2, 0), 2, ("world.split", (0, 1))), (1, (3, 1), 3, ("world.split", (0, 1))),
                               (0, (2, 0), 0, None), (0, (3, 1), 1, ("world.split", (3,)))]


@pytest.mark.parametrize("P", [4])
def test_a_group_can_be_split_again_and_its_messages_do_not_meet_others(P, world):
    def program(comm):
        half = comm.split(comm.rank // 2, name="half")
        twin = half.split(0, 1 - half.rank, name="twin")                    # the same two ranks, the other way round
        assert twin.rank == 1 - half.rank and twin.ranks == half.ranks[::-1]
        if half.rank == 0:
            requests = [c.isend(x, p, tag=3) for x, (c, p) in enumerate([(comm, comm.rank + 1), (half, 1), (twin, 0)])]
            for request in requests:
                request.wait()
        else:
            assert [int(c.recv(p, tag=3)) for c, p in ((twin, 1), (half, 0), (comm, comm.rank - 1))] == [2, 1, 0]

    run(program, P)


@pytest.mark.parametrize("P", [2])
@pytest.mark.parametrize("color", ["a", 1.5, (1,)])
def test_a_color_is_a_whole_number_or_none(P, world, color):
    with pytest.raises(ValueError, match="color=.*must be a whole number, or None to belong to no group"):
        run(lambda comm: comm.split(color), P)


@pytest.mark.parametrize("P", [1, 3])
def test_each_rank_draws_its_own_numbers_the_same_on_every_run_and_in_every_world(P, world):
    def program(comm):
        sub = comm.split(0, -comm.rank)
        return comm.rng.random(), sub.rng.random()                          # one generator, whatever the group

    expected = [tuple(np.random.default_rng([5, rank]).random(2)) for rank in range(P)]
    assert run(program, P, seed=5) == run(program, P, seed=5) == expected
    drawn = [x for seed in (0, 5) for pair in run(program, P, seed=seed) for x in pair]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("P", [1, 3])
def test_every_rank_gets_the_results_in_rank_order(P, world):
    results = run(lambda comm, *rest: (comm.rank, comm.size, rest), P, "a", 2)
    assert results == [(r, P, ("a", 2)) for r in range(P)]


@pytest.mark.parametrize("P", [2])
def test_device_arrays_stay_on_their_device_in_a_collective(P, world):
    fake = BACKENDS["cupy stand-in"]

    def program(comm):
        y = all_reduce(device_array(fake, np.arange(5.0)), comm, out=fake.zeros(5))
        assert is_device(y)
        return to_host(y)

    for y in run(program, P):
        assert_array_equal(y, 2 * np.arange(5.0))


@pytest.mark.parametrize("P", [2])
@pytest.mark.parametrize("call, bad, says", [
    ("compute", -1, "flops=-1: must be a number of operations"), ("compute", float("nan"), "flops=nan"),
    ("compute", "1e9", "flops='1e9'"), ("elapse", -0.5, "seconds=-0.5: time only goes forward"),
    ("elapse", float("inf"), "seconds=inf"), ("elapse", None, "seconds=None")])
def test_work_and_time_are_numbers_0_or_more(P, world, call, bad, says):
    with pytest.raises(ValueError, match=says):
        run(lambda comm: getattr(comm, call)(bad), P)


@pytest.mark.parametrize("P", [2])
def test_messages_left_behind_are_an_error_on_every_rank(P, world):
    """A send never received; a receive never waited for. (With rendezvous, the first does not even return.)"""
    def never_received(comm):
        if comm.rank == 0:
            for _ in range(2):
                comm.isend(np.ones(3), 1, tag=7)

    def never_waited_for(comm):
        if comm.rank == 1:
            comm.irecv(0)
        else:
            comm.send(np.ones(LARGE), 1)

    for program, n in ((never_received, "2 messages"), (never_waited_for, "1 message")):
        with pytest.raises(UndeliveredMessageError, match=f"rank 1 did not receive {n} of rank 0"):
            run(program, P)
    assert run(lambda comm: comm.irecv(0) and None, P) == [None, None]              # asked for, but never sent: no harm
