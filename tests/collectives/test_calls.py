"""The calls: any memory layout, `out`, arguments that are refused before anything is sent, ranks that disagree."""

import numpy as np
import pytest
from backends import device_array
from numpy.testing import assert_array_equal

from refimpl import CollectiveMismatchError, DeadlockError, Ledger, run
from refimpl.arrays import to_host
from refimpl.collectives import all_gather, all_reduce, all_to_all, broadcast, gather, reduce_scatter, scatter

X = np.arange(6.0).reshape(2, 3)

# -- A03 and A04: how an array lies in memory, and how it is cut for the wire -----------------------------------------

LAYOUTS = {
    "Fortran order": lambda xp, x: device_array(xp, np.asfortranarray(x)),
    "transposed": lambda xp, x: device_array(xp, np.ascontiguousarray(x.T)).T,
    "every second row": lambda xp, x: device_array(xp, np.repeat(x, 2, 0))[::2],
    "every second column": lambda xp, x: device_array(xp, np.repeat(x, 2, 1))[:, ::2],
    "backwards": lambda xp, x: device_array(xp, np.ascontiguousarray(x[::-1, ::-1]))[::-1, ::-1],
    "one row, repeated": lambda xp, x: xp.broadcast_to(device_array(xp, x[:1]), x.shape),
}


@pytest.mark.parametrize("P", [2, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_A03_an_array_arrives_as_it_looks_and_not_as_it_lies_in_memory(P, layout, world, xp):
    """numba-mpi PR #31: column-major arrays arrived transposed; a test double that accepts more than MPI hides it."""
    x = X if layout != "one row, repeated" else np.tile(X[:1], (2, 1))

    def program(comm):
        mine = LAYOUTS[layout](xp, x * (comm.rank + 1))
        found = (all_reduce(mine, comm), all_reduce(mine, comm, algorithm="doubling"),
                 reduce_scatter(mine, comm, axis=1), all_gather(mine, comm, axis=1),
                 all_to_all([mine] * P, comm)[0], broadcast(mine, comm, root=1),
                 gather(mine, comm, root=1), scatter(mine if comm.rank == 1 else None, comm, root=1), mine)
        return [None if y is None else to_host(y) for y in found]

    total = P * (P + 1) / 2
    for rank, found in enumerate(run(program, P)):
        expected = (x * total, x * total, (x * total)[:, 3 * rank // P:3 * (rank + 1) // P],
                    np.concatenate([x * (r + 1) for r in range(P)], 1), x, x * 2,
                    np.concatenate([x * (r + 1) for r in range(P)]) if rank == 1 else None,
                    (x * 2)[2 * rank // P:2 * (rank + 1) // P], x * (rank + 1))
        for y, right in zip(found, expected, strict=True):
            assert_array_equal(y, right)


@pytest.mark.parametrize("P", [2])
def test_A03_the_example_of_the_report(P, world):
    results = run(lambda comm: all_reduce(np.asfortranarray(np.arange(6).reshape(2, 3)) * (comm.rank + 1), comm), P)
    for y in results:
        assert_array_equal(y, [[0, 3, 6], [9, 12, 15]])


@pytest.mark.parametrize("P", [2, 3])
@pytest.mark.parametrize("out", ["C order", "Fortran order", "strided", "a number's", "empty"])
@pytest.mark.parametrize("headers", ["0", "1"])
def test_the_result_goes_into_out_whatever_its_layout_and_x_stays(P, out, headers, world, xp, monkeypatch):
    monkeypatch.setenv("REFIMPL_CHECK", headers)          # 0, as outside the tests: messages into `out` travel bare
    shape = {"a number's": (), "empty": (0, 3)}.get(out, (2, 3))

    def program(comm):
        x = device_array(xp, np.full(shape, comm.rank + 1.0))
        special = {"Fortran order": xp.full((3, 2), 9.0).T, "strided": xp.full((2, 6), 9.0)[:, ::2]}
        y = special.get(out, xp.full(shape, 9.0))
        assert all_reduce(x, comm, out=y) is y
        for k in range(3):                                # often in a row: nothing may overtake
            assert all_reduce(y, comm, algorithm=["ring", "doubling"][k % 2], out=y) is y
        return to_host(x), to_host(y)

    for rank, (x, y) in enumerate(run(program, P)):
        assert_array_equal(x, np.full(shape, rank + 1.0))
        assert_array_equal(y, np.full(shape, P**3 * P * (P + 1) / 2))


@pytest.mark.parametrize("P", [2, 3])
@pytest.mark.parametrize("n", [12, 60_000])           # 60,000: chunks that are lent, or streamed
def test_out_may_be_any_part_of_x_and_x_any_part_of_out(P, n, world, xp, monkeypatch):
    """Whatever comes in must not change what is still to be sent or added."""
    monkeypatch.setenv("REFIMPL_CHECK", "0")
    share = n // P

    def program(comm):
        found = []
        for start in (comm.rank * share, 0, share // 2, n - share):
            x = device_array(xp, np.arange(n) * (comm.rank + 1.0))
            out = x[start:start + share]
            assert reduce_scatter(x, comm, out=out) is out
            found.append(to_host(out).copy())
            whole = device_array(xp, np.full(n, -1.0))
            mine = whole[start:start + share]
            mine[...] = device_array(xp, found[0])
            found.append(to_host(all_gather(mine, comm, out=whole)))
        shifted = device_array(xp, np.arange(n + 1.0))
        found.append(to_host(all_reduce(shifted[1:], comm, out=shifted[:-1])))
        return found

    total = np.arange(n) * P * (P + 1) / 2
    for rank, (*found, shifted) in enumerate(run(program, P)):
        for chunk, whole in zip(found[::2], found[1::2], strict=True):
            assert_array_equal(chunk, total[rank * share:(rank + 1) * share])
            assert_array_equal(whole, total)
        assert_array_equal(shifted, np.arange(1, n + 1) * P)


@pytest.mark.parametrize("P", [2, 3])
def test_A04_arrays_longer_than_one_message_may_be_arrive_whole(P, world, monkeypatch):
    """mpi4py #575: a count is a signed 32-bit number. Here the limit is 10 elements, and 37 must go."""
    monkeypatch.setenv("REFIMPL_MPI_MAX_COUNT", "10")
    x = np.arange(37.0)

    def program(comm):
        mine = x * (comm.rank + 1)
        out = np.empty(37)
        return (all_reduce(mine, comm), all_reduce(mine, comm, algorithm="doubling"), all_reduce(mine, comm, out=out),
                all_gather(mine, comm), np.concatenate(all_to_all([mine] * P, comm)), broadcast(mine, comm, root=P - 1))

    total, joined = x * P * (P + 1) / 2, np.concatenate([x * (r + 1) for r in range(P)])
    for found in run(program, P):
        for y, right in zip(found, (total, total, total, joined, joined, x * P), strict=True):
            assert_array_equal(y, right)


@pytest.mark.parametrize("P", [4])
def test_in_a_group_ranks_and_roots_are_the_groups_own(P, world):
    """Ranks 3 and 1 make one group, in this order, ranks 2 and 0 the other; both are at it at the same time."""
    def program(comm):
        group = comm.split(comm.rank % 2, key=-comm.rank, name="half")
        x = np.full(2, comm.rank)
        return (all_reduce(x, group), reduce_scatter(x, group), all_gather(x[:1], group), gather(x[:1], group, root=1),
                broadcast(x, group), scatter(x if group.rank == 1 else None, group, root=1),
                all_reduce(x, group, algorithm="doubling"), all_to_all([x + 10, x + 20], group))

    log = Ledger()
    for rank, found in enumerate(run(program, P, ledger=log)):
        high, low = (2, 0) if rank % 2 == 0 else (3, 1)
        total, column = high + low, 10 if rank == high else 20
        expected = ([total] * 2, [total], [high, low], [high, low] if rank == low else None, [high] * 2, [low],
                    [total] * 2, [[high + column] * 2, [low + column] * 2])
        for y, right in zip(found, expected, strict=True):
            assert y is None if right is None else np.array_equal(y, right)
    assert log.bytes_sent(group="half") == log.bytes_sent() > 0


# -- wrong arguments --------------------------------------------------------------------------------------------------

READ_ONLY = np.broadcast_to(0.0, (2, 3))
REFUSED = {
    "algorithm='rnig' is not known: one of ring, .*perhaps 'ring'": lambda c: all_reduce(X, c, algorithm="rnig"),
    "algorithm=.'ring'. is not known": lambda c: all_reduce(X, c, algorithm=["ring"]),
    "algorithm=None is not known.*perhaps 'auto'": lambda c: all_reduce(X, c, algorithm=None),
    r"out has shape \(3, 2\) and dtype float64, the result \(2, 3\)": lambda c: all_reduce(X, c, out=np.empty((3, 2))),
    "and dtype float32, the result .* and float64: they must":
        lambda c: all_reduce(X, c, out=np.empty((2, 3), "float32")),
    r"an out of shape \(2, 3\) rank 0 of 3 must bring \(0, 3\)": lambda c: all_gather(X, c, out=np.empty((2, 3))),
    "rank 0 of 3 must bring an array of 1 axes": lambda c: all_gather(X, c, out=np.empty(2)),
    r"out=\[0, 0\] is not an array: give one of shape \(2, 3\)": lambda c: all_reduce(X, c, out=[0, 0]),
    "out, .* is read-only": lambda c: all_reduce(X, c, out=READ_ONLY),
    "out, of shape .* is read-only": lambda c: all_reduce(READ_ONLY, c, out=READ_ONLY),
    "axis=2 is not an axis of an array of shape .* it has axes 0 to 1": lambda c: reduce_scatter(X, c, axis=2),
    r"axis=-3 is not an axis of an array of shape \(2, 3\)": lambda c: all_gather(X, c, axis=-3),
    "axis=1 is not an axis of .* it has axes 0 to 0": lambda c: gather(X[0], c, axis=1),
    "axis=2 is not an axis": lambda c: scatter(X if c.rank == 0 else None, c, axis=2),
    "axis='rows' is not an axis: give a whole number": lambda c: scatter(None if c.rank else X, c, axis="rows"),
    "axis=1.0 is not an axis: give a whole number": lambda c: all_gather(X, c, axis=1.0),
    "axis=0 .* shape .*: it has none: reshape it to .1,.": lambda c: all_gather(1.0, c),
    "root=3 is not a rank of world: it has ranks 0 to 2": lambda c: broadcast(X, c, root=3),
    "root=-1 is not a rank of world": lambda c: gather(X, c, root=-1),
    "root=0.0 is not a rank of world": lambda c: scatter(X, c, root=0.0),
    "rank 1 is the root of broadcast, and gave None": lambda c: broadcast(None, c, root=1),
    "rank 0 is the root of scatter, and gave None": lambda c: scatter(None, c),
    "was given 2 parts, but world has 3 ranks: one part for each": lambda c: all_to_all([X, X], c),
    "parts=None: all_to_all takes a list of 3 arrays, one for each rank": lambda c: all_to_all(None, c),
    "the parts of an all_to_all have dtypes <f4, <f8": lambda c: all_to_all([X, X.astype("float32"), X], c),
    "dtype object cannot be sent": lambda c: all_to_all([X, None, X], c),
    "dtype <U5 cannot be sent": lambda c: all_reduce("array", c),
    ">f8 has the other byte order: send x.astype": lambda c: all_gather(X.astype(">f8"), c),
}


@pytest.mark.parametrize("says", REFUSED)
def test_a_wrong_argument_is_refused_by_name_before_anything_is_sent(says):
    log = Ledger()
    with pytest.raises(ValueError, match=says):
        run(REFUSED[says], 3, ledger=log)
    assert log.messages() == 0


def test_arrays_of_host_and_device_in_one_call_are_refused():
    import fake_cupy

    device = fake_cupy.array(X)
    for call in (lambda c: all_reduce(X, c, out=fake_cupy.array(X)), lambda c: all_reduce(device, c, out=X.copy()),
                 lambda c: all_to_all([X, device], c)):
        log = Ledger()
        with pytest.raises(ValueError, match="arrays of different libraries: fake_cupy and numpy"):
            run(call, 2, ledger=log)
        assert log.messages() == 0


@pytest.mark.parametrize("P", [2])
def test_numbers_and_lists_count_as_arrays_and_numpys_integers_as_integers(P, world):
    one = np.int64(1)

    def program(comm):
        return (all_reduce(comm.rank + 1.5, comm), all_gather([comm.rank], comm), broadcast(2.5, comm, root=one),
                scatter(X if comm.rank == 1 else None, comm, root=one, axis=one), gather(X, comm, root=one, axis=one))

    for rank, (total, joined, number, columns, gathered) in enumerate(run(program, P)):
        assert (total.shape, total[()], number[()]) == ((), 4.0, 2.5)
        assert_array_equal(joined, [0, 1])
        assert_array_equal(columns, X[:, rank:1 + 2 * rank])
        assert gathered is None if rank == 0 else gathered.shape == (2, 6)


# -- ranks that disagree ----------------------------------------------------------------------------------------------

DISAGREE = {                                                  # what rank 0 calls, what rank 1 calls, what both are told
    "collective": (lambda c: all_reduce(X, c), lambda c: reduce_scatter(X, c), "all_reduce", "reduce_scatter"),
    "op": (lambda c: all_reduce(X, c), lambda c: all_reduce(X, c, op="max"), "op=sum", "op=max"),
    "algorithm": (lambda c: all_reduce(X, c), lambda c: all_reduce(X, c, algorithm="doubling"),
                  "algorithm=auto", "algorithm=doubling"),
    "shape": (lambda c: all_reduce(X, c), lambda c: all_reduce(X.T, c), "shape=(2, 3)", "shape=(3, 2)"),
    "size": (lambda c: all_reduce(X[0], c, algorithm="doubling"),
             lambda c: all_reduce(X[0, :2], c, algorithm="doubling"), "shape=(3,)", "shape=(2,)"),
    "dtype": (lambda c: all_reduce(X, c), lambda c: all_reduce(X.astype("float32"), c), "dtype=<f8", "dtype=<f4"),
    "whole shape": (lambda c: reduce_scatter(X, c), lambda c: reduce_scatter(X[:1], c), "shape=(2, 3)", "shape=(1, 3)"),
    "axis": (lambda c: reduce_scatter(X, c), lambda c: reduce_scatter(X, c, axis=1), "axis=0", "axis=1"),
    "other axes": (lambda c: all_gather(X, c), lambda c: all_gather(X.T, c), "others=(3,)", "others=(2,)"),
    "axis to join": (lambda c: all_gather(X, c), lambda c: all_gather(X, c, axis=1), "axis=0", "axis=1"),
    "dtype to join": (lambda c: all_gather(X, c), lambda c: all_gather(X > 1, c), "dtype=<f8", "dtype=|b1"),
    "dtype of blocks": (lambda c: gather(X, c), lambda c: gather(X > 1, c), "dtype=<f8", "dtype=|b1"),
    "shape given": (lambda c: broadcast(X, c), lambda c: broadcast(X.T, c), "shape=(2, 3)", "shape=(3, 2)"),
    "axis to scatter": (lambda c: scatter(X, c, axis=1), lambda c: scatter(None, c), "axis=1", "axis=0"),
    "dtype of parts": (lambda c: all_to_all([X, X], c), lambda c: all_to_all([X > 1, X > 1], c),
                       "dtype=<f8", "dtype=|b1"),
    "second call": (lambda c: (c.barrier(), c.barrier()), lambda c: (c.barrier(), all_reduce(X, c)),
                    "barrier call 1", "all_reduce call 1"),
}


@pytest.mark.parametrize("what", DISAGREE)
def test_ranks_that_disagree_are_told_both_sides_and_nobody_hangs(what):
    first, second, one_side, other_side = DISAGREE[what]
    with pytest.raises(CollectiveMismatchError) as caught:
        run(lambda comm: (first, second)[comm.rank](comm), 2)
    for side in ("rank 0", "rank 1", one_side, other_side):
        assert side in str(caught.value)


@pytest.mark.parametrize("call", [broadcast, gather, scatter])
@pytest.mark.parametrize("rendezvous", [True, False])
def test_two_roots_are_a_mismatch_although_no_message_arrives_that_tells(call, rendezvous):
    """The root decides who talks to whom: both send, or both wait."""
    with pytest.raises(CollectiveMismatchError, match="(?s)rank 0.*rank 1") as caught:
        run(lambda comm: call(X, comm, root=comm.rank), 2, rendezvous=rendezvous)
    assert "root=0" in str(caught.value) and "root=1" in str(caught.value)


def test_one_rank_that_leaves_a_collective_out_is_found():
    with pytest.raises(DeadlockError, match=r"(?s)rank 0 waits .*all_reduce call 0.*rank 2 has returned"):
        run(lambda comm: all_reduce(X, comm) if comm.rank != 2 else None, 3)
