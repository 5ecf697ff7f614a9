"""Every all-reduce gives what the plain ring gives, sends what the formulas say, and takes the time that they say."""

import numpy as np
import pytest
from backends import device_array
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from refimpl import Ledger, Link, Network, run
from refimpl.arrays import to_host
from refimpl.collectives import all_gather, all_reduce, bounds, reduce_scatter, ring
from refimpl.cost import alpha_beta, traffic

OURS = ["ring", "doubling", "rabenseifner", "tree", "hierarchical", "auto"]
ALPHA, BETA = 3.7e-6, 1.3e-9


def values(rank, n, dtype):
    """Small integers, different on every rank: exact in any order and every dtype."""
    return (np.arange(n) * (rank + 2) % 5 + 1 - (rank + np.arange(n)) % 2).astype(dtype)


def plain(P, n, op, dtype):
    """What the plain ring leaves on rank 0."""
    return run(lambda comm: ring.all_reduce_(values(comm.rank, n, dtype), comm, op), P)[0]


@pytest.mark.parametrize("algorithm", OURS)
@pytest.mark.parametrize("P", range(1, 10))
def test_equals_the_plain_ring_for_all_sizes_ops_and_dtypes_in_place_and_not(P, algorithm):
    for n in range(41):
        op = ["sum", "prod", "max", "min"][n % 4]
        dtype = ["int64", "float64", "float32", "float16", "uint8", "complex128"][n % 6 if op in ("sum", "prod") else n % 5]
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
@pytest.mark.parametrize("n", [0, 1, 3, 40_000])       # 40,000: longer than what is lent instead of copied, than a segment
def test_all_ranks_end_with_the_same_bits_in_both_worlds_and_on_devices(P, world, xp, algorithm, n):
    def program(comm):
        x = device_array(xp, np.random.default_rng(comm.rank).standard_normal(n))
        return to_host(all_reduce(x, comm, algorithm=algorithm))

    results = run(program, P)
    expected = sum(np.random.default_rng(rank).standard_normal(n) for rank in range(P))
    for y in results:
        assert_array_equal(y, results[0])
    np.testing.assert_allclose(results[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("check", ["0", "1"])          # without headers (and, under MPI, streamed in segments), and with
@pytest.mark.parametrize("P", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [1, 5, 300_001])
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
    assert alpha_beta.rabenseifner_all_reduce(P, ALPHA, t) == pytest.approx(2 * lg * ALPHA + 2 * t * (P - 1) / P, rel=1e-14)
    assert alpha_beta.tree_all_reduce(P, ALPHA, t) == pytest.approx(2 * lg * (ALPHA + t), rel=1e-14)
    folded = alpha_beta._folded(P, ALPHA, t, [(bit, t) for bit in range(lg)])
    assert folded == pytest.approx(alpha_beta.doubling_all_reduce(P, ALPHA, t), rel=1e-14)


@pytest.mark.parametrize("N, M", [(1, 3), (2, 1), (2, 2), (3, 2), (2, 4), (4, 3)])
def test_hierarchical_takes_the_time_of_its_two_rings(N, M):
    intra, inter, n = (1e-6, 1e-10), (7e-6, 3e-9), 12 * N * M
    network = Network(Link(*intra), inter=Link(*inter), node_size=N)
    formula = alpha_beta.hierarchical_all_reduce(N, M, n * 8, intra, inter)
    assert seconds(N * M, n, "hierarchical", network, True) == pytest.approx(formula, rel=1e-12)


def test_hierarchical_refuses_nodes_of_different_sizes_and_says_what_works():
    network = Network(Link(0, 0), inter=Link(0, 0), node_size=2)
    with pytest.raises(ValueError, match="nodes have 1, 2 of them: use 'ring'"):
        run(lambda comm: all_reduce(np.ones(4), comm, algorithm="hierarchical"), 3, network=network)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(0, 300), st.sampled_from(OURS), st.booleans())
def test_any_size_any_ranks_any_algorithm(P, n, algorithm, rendezvous):
    results = run(lambda comm: all_reduce(values(comm.rank, n, "int64"), comm, algorithm=algorithm), P, rendezvous=rendezvous)
    for y in results:
        assert_array_equal(y, sum(values(rank, n, "int64") for rank in range(P)))
