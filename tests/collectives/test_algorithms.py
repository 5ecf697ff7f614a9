"""Every all-reduce gives what the plain ring gives, sends what the formulas say, and takes the time that they say."""

import numpy as np
import pytest
from backends import device_array
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from refimpl import Layout, Ledger, Link, Mesh, Network, run
from refimpl.arrays import to_host
from refimpl.collectives import all_gather, all_reduce, all_reduce_start, bounds, reduce_scatter, ring
from refimpl.cost import alpha_beta, traffic

OURS = ["ring", "doubling", "rabenseifner", "tree", "hierarchical", "auto"]
NUMBERS = ["int64", "uint8", "float16", "float32", "float64", "complex64", "complex128"]
PAIRS = [*((op, dtype) for op in ("sum", "prod") for dtype in NUMBERS),
         *((op, dtype) for op in ("max", "min") for dtype in ("bool", *NUMBERS[:5]))]
ALPHA, BETA = 3.7e-6, 1.3e-9


def values(rank, n, dtype):
    """-1, 1 and 2, other ones on every rank: their sums and products are exact in any order and every dtype."""
    x = np.array([-1, 1, 2])[(np.arange(n) * (rank + 2) + rank) % 3]
    return x > 0 if dtype == "bool" else x.astype(dtype)


def plain(P, n, op, dtype):
    """What the plain ring leaves on rank 0."""
    return run(lambda comm: ring.all_reduce_(values(comm.rank, n, dtype), comm, op), P)[0]


@pytest.mark.parametrize("algorithm", OURS)
@pytest.mark.parametrize("P", range(1, 10))
def test_equals_the_plain_ring_for_all_sizes_ops_and_dtypes_in_place_and_not(P, algorithm):
    for n in range(41):
        op, dtype = PAIRS[(n + P) % len(PAIRS)]        # 26 pairs: over all n and P every pair meets every kind of size
        expected = plain(P, n, op, dtype)

        def program(comm, n=n, op=op, dtype=dtype):
            x = values(comm.rank, n, dtype)
            kept = x.copy()
            y = all_reduce(x, comm, op=op, algorithm=algorithm)
            assert_array_equal(x, kept)
            z = all_reduce(x, comm, op=op, algorithm=algorithm, out=x)
            assert z is x
            return y, z

        for y, z in run(program, P):
            assert y.dtype == np.dtype(dtype)
            assert_array_equal(y, expected)
            assert_array_equal(z, expected)


@pytest.mark.parametrize("algorithm", OURS)
@pytest.mark.parametrize("P", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("n", [0, 1, 3, 40_000])       # 40,000: chunks are lent instead of copied
def test_all_ranks_end_with_the_same_bits_in_both_worlds_and_on_devices(P, world, xp, algorithm, n):
    def program(comm):
        x = device_array(xp, np.random.default_rng(comm.rank).standard_normal(n))
        return to_host(all_reduce(x, comm, algorithm=algorithm))

    results = run(program, P)
    expected = sum(np.random.default_rng(rank).standard_normal(n) for rank in range(P))
    for y in results:
        assert_array_equal(y, results[0])
    np.testing.assert_allclose(results[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("P", [4])
@pytest.mark.parametrize("algorithm", OURS)
@pytest.mark.parametrize("place", ["new", "in place", "out"])
def test_A01_fewer_elements_than_ranks_in_place_and_out_of_place(P, algorithm, place, world):
    """open-mpi/ompi #9385: some algorithms of a non-blocking all-reduce gave wrong sums."""
    def program(comm):
        found = []
        for n in (0, 1, 2, 5, 10):
            x = np.array([comm.rank, 0 if comm.rank == 0 else 1 / comm.rank] * n, "float64")[:n]
            kept, out = x.copy(), {"new": None, "in place": x, "out": np.full(n, 7.0)}[place]
            found.append(all_reduce(x, comm, algorithm=algorithm, out=out))
            assert place == "in place" or (x == kept).all()
        return found

    for found in run(program, P):
        for y in found:
            np.testing.assert_allclose(y, np.array([6, 1 + 1 / 2 + 1 / 3] * len(y))[:len(y)], rtol=1e-15)


@pytest.mark.parametrize("P", [2, 3, 4])
@pytest.mark.parametrize("algorithm", OURS)
def test_A02_no_algorithm_relies_on_buffers(P, algorithm, world, monkeypatch):
    """NVIDIA/nccl #479: send-then-receive on every rank passes small tests and hangs on large messages."""
    def program(comm):
        x = np.full(200_000, comm.rank + 1.0)
        return all_reduce(x, comm, algorithm=algorithm)[-1], all_reduce(x, comm, algorithm=algorithm, out=x)[0]

    for check in ("0", "1"):
        monkeypatch.setenv("REFIMPL_CHECK", check)
        assert run(program, P, rendezvous=True) == [(P * (P + 1) / 2,) * 2] * P


@pytest.mark.parametrize("check", ["0", "1"])          # without headers (under MPI: streamed in segments), and with
@pytest.mark.parametrize("P", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [1, 5, 300_001, 4 * 131_072 + 1])       # one of 4 chunks is longer than a segment
def test_the_streamed_ring_gives_the_bits_of_the_plain_ring(P, world, monkeypatch, check, n):
    monkeypatch.setenv("REFIMPL_CHECK", check)

    def program(comm):
        x = np.random.default_rng(comm.rank).standard_normal(n).astype(np.float32)
        reference = ring.all_reduce_(x.copy(), comm)
        b = bounds(n, comm.size)
        mine = slice(b[comm.rank], b[comm.rank + 1])
        chunk, whole = np.empty_like(x[mine]), np.empty_like(x)
        reduce_scatter(x, comm, out=chunk)
        all_gather(chunk, comm, out=whole)
        return reference, chunk - reference[mine], whole, all_reduce(x, comm, algorithm="ring", out=x)

    for reference, difference, whole, y in run(program, P):
        assert not difference.any()
        assert_array_equal(whole, reference)
        assert_array_equal(y, reference)


def sent(P, n, algorithm, network=None):
    log = Ledger()
    run(lambda comm: all_reduce(np.ones(n), comm, algorithm=algorithm), P, ledger=log, network=network)
    return log


@pytest.mark.parametrize("P", range(1, 10))
@pytest.mark.parametrize("n", [0, 1, 7, 24, 100])
def test_bytes_and_messages_equal_the_formulas(P, n):
    log = sent(P, n, "rabenseifner")
    for rank in range(P):
        assert log.bytes_sent(rank=rank) == 8 * traffic.rabenseifner_all_reduce(n, P, rank)
    assert log.bytes_sent() == 8 * 2 * (P - 1) * n
    assert log.messages() == traffic.rabenseifner_messages(P)

    log = sent(P, n, "tree")
    assert log.bytes_sent() == 8 * traffic.tree_all_reduce(n, P)
    assert log.messages() == 2 * (P - 1)

    log = sent(P, n, "ring")
    for rank in range(P):
        assert log.bytes_sent(rank=rank) == 8 * traffic.ring_all_reduce(n, P, rank)
        assert log.messages(rank=rank) == traffic.ring_messages(P, passes=2)


@pytest.mark.parametrize("N, M", [(1, 1), (1, 3), (2, 1), (2, 2), (3, 2), (2, 3), (4, 2)])
@pytest.mark.parametrize("n", [0, 5, 24, 101])
def test_hierarchical_sends_little_between_nodes(N, M, n):
    log = sent(N * M, n, "hierarchical", Network(Link(0, 0), inter=Link(0, 0), node_size=N))
    for rank in range(N * M):
        formula = traffic.hierarchical_all_reduce(n, N, M, rank)
        assert log.bytes_sent(rank=rank, group="world.node") == 8 * formula["node"]
        assert log.bytes_sent(rank=rank, group="world.nodes") == 8 * formula["nodes"]


def seconds(P, n, algorithm, network, rendezvous):
    def program(comm):
        all_reduce(np.ones(n), comm, algorithm=algorithm)
        return comm.clock

    return max(run(program, P, network=network, rendezvous=rendezvous))


@pytest.mark.parametrize("rendezvous", [False, True])
@pytest.mark.parametrize("P", range(1, 18))
def test_virtual_time_equals_the_alpha_beta_formulas(P, rendezvous):
    n = 16 * P                                          # every chunk of every algorithm has the same size
    t = n * 8 * BETA
    for algorithm in ("rabenseifner", "tree", "ring", "doubling"):
        formula = getattr(alpha_beta, f"{algorithm}_all_reduce")(P, ALPHA, t)
        measured = seconds(P, n, algorithm, Network(Link(ALPHA, BETA)), rendezvous)
        assert measured == pytest.approx(formula, rel=1e-12), algorithm


@pytest.mark.parametrize("lg", range(4))
def test_the_formulas_are_the_textbook_ones_at_powers_of_two(lg):
    """Thakur, Rabenseifner & Gropp 2005, table 3."""
    P, t = 2**lg, 1e-3
    rabenseifner = 2 * lg * ALPHA + 2 * t * (P - 1) / P
    assert alpha_beta.rabenseifner_all_reduce(P, ALPHA, t) == pytest.approx(rabenseifner, rel=1e-14)
    assert alpha_beta.tree_all_reduce(P, ALPHA, t) == pytest.approx(2 * lg * (ALPHA + t), rel=1e-14)
    folded = alpha_beta._folded(P, ALPHA, t, [(bit, t) for bit in range(lg)])
    assert folded == pytest.approx(alpha_beta.doubling_all_reduce(P, ALPHA, t), rel=1e-14)


@pytest.mark.parametrize("N, M", [(1, 3), (2, 1), (2, 2), (3, 2), (2, 4), (4, 3)])
def test_hierarchical_takes_the_time_of_its_two_rings(N, M):
    intra, inter, n = (1e-6, 1e-10), (7e-6, 3e-9), 12 * N * M
    network = Network(Link(*intra), inter=Link(*inter), node_size=N)
    formula = alpha_beta.hierarchical_all_reduce(N, M, n * 8, intra, inter)
    assert seconds(N * M, n, "hierarchical", network, True) == pytest.approx(formula, rel=1e-12)


@pytest.mark.parametrize("N, M", [(2, 2), (3, 2)])
def test_hierarchical_is_counted_as_the_call_that_it_is(N, M):
    log = sent(N * M, 24, "hierarchical", Network(Link(0, 0), inter=Link(0, 0), node_size=N))
    assert log.bytes_sent(collective="all_reduce") == log.bytes_sent() > 0


@pytest.mark.parametrize("P", [4])
def test_hierarchical_in_groups_and_in_the_background(P, world):
    """Only two of the ranks are at it; and the work of a rank, which is another task or thread each time."""
    def program(comm):
        half = comm.split(comm.rank // 2, name="half")
        first = all_reduce(np.ones(4), half, algorithm="hierarchical") if comm.rank < 2 else None
        works = [all_reduce_start(np.ones(4), comm, algorithm="hierarchical") for _ in range(3)]
        return first, *(work.wait() for work in works)

    for rank, (first, *sums) in enumerate(run(program, P)):
        assert first is None if rank >= 2 else (first == 2).all()
        assert all((y == P).all() for y in sums)


@pytest.mark.parametrize("P", [4])
@pytest.mark.parametrize("check", ["0", "1"])
@pytest.mark.parametrize("node_size, crossing", [(1, 4), (2, 2), (4, 1)])
def test_hierarchical_in_a_group_of_a_mesh_goes_by_the_layouts_nodes(P, check, node_size, crossing, world, monkeypatch):
    monkeypatch.setenv("REFIMPL_CHECK", check)
    n = 300_001

    def program(comm):
        dp = Mesh(comm, Layout(dp=P, node_size=node_size)).dp
        x = np.random.default_rng(comm.rank).integers(-9, 9, n).astype(float)
        y = all_reduce(x, dp, algorithm="hierarchical", out=np.empty(n))
        z = all_reduce_start(x, dp, algorithm="hierarchical").wait()
        right = all_reduce(x, comm, algorithm="ring")
        return (y == right).all() and (z == right).all(), [group.size for group in dp.node_groups]

    log = Ledger()
    assert run(program, P, ledger=log) == [(True, [node_size, crossing])] * P
    for rank in range(P):
        formula = traffic.hierarchical_all_reduce(n, node_size, crossing, rank)
        for group in ("node", "nodes"):
            assert log.bytes_sent(rank=rank, group=f"dp.{group}", collective="all_reduce") == 2 * 8 * formula[group]


def test_hierarchical_refuses_nodes_of_different_sizes_and_says_what_works():
    network = Network(Link(0, 0), inter=Link(0, 0), node_size=2)
    with pytest.raises(ValueError, match="nodes have 1, 2 of them: use 'ring'"):
        run(lambda comm: all_reduce(np.ones(4), comm, algorithm="hierarchical"), 3, network=network)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(0, 300), st.sampled_from(OURS), st.booleans())
def test_any_size_any_ranks_any_algorithm(P, n, algorithm, rendezvous):
    program = lambda comm: all_reduce(values(comm.rank, n, "int64"), comm, algorithm=algorithm)
    for y in run(program, P, rendezvous=rendezvous):
        assert_array_equal(y, sum(values(rank, n, "int64") for rank in range(P)))
