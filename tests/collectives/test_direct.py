"""The direct all-gather: what it gathers, sends and takes, and that only those who can use it may ask for it."""

import numpy as np
import pytest
from backends import device_array
from numpy.testing import assert_array_equal

from refimpl import CollectiveMismatchError, Ledger, Link, Network, run
from refimpl.arrays import to_host
from refimpl.collectives import all_gather, bounds, direct
from refimpl.cost import alpha_beta, traffic

ALPHA, BETA = 3e-6, 2e-9


def part(n, rank, P):
    """Chunk `rank` of 0, 1, ..., n-1."""
    b = bounds(n, P)
    return np.arange(b[rank], b[rank + 1])


def gathered(comm, n):
    return all_gather(part(n, comm.rank, comm.size), comm, out=np.full(n, -1), algorithm="direct")


@pytest.mark.parametrize("rendezvous", [True, False])
@pytest.mark.parametrize("P", range(1, 10))
def test_it_equals_the_ring_for_all_sizes(P, rendezvous):
    for n in range(41):
        for y in run(gathered, P, n, rendezvous=rendezvous):
            assert_array_equal(y, np.arange(n))


@pytest.mark.parametrize("P", [1, 2, 3, 4])
@pytest.mark.parametrize("headers", ["0", "1"])
def test_any_axis_large_and_uneven_in_both_worlds_and_on_devices(P, headers, world, xp, monkeypatch):
    monkeypatch.setenv("REFIMPL_CHECK", headers)
    cases = [((300_001,), 0), ((3, 5), 1), ((2, 7, 2), -2), ((0, 4), 1)]

    def program(comm):
        found = []
        for shape, axis in cases:
            whole = np.arange(np.prod(shape, dtype=int)).reshape(shape) * 1.0
            b = bounds(shape[axis], comm.size)
            mine = np.take(whole, range(b[comm.rank], b[comm.rank + 1]), axis)
            out = device_array(xp, np.full(shape, -1.0))
            assert all_gather(device_array(xp, mine), comm, axis=axis, out=out, algorithm="direct") is out
            found.append(bool((to_host(out) == whole).all()))
        return found

    assert run(program, P) == [[True] * len(cases)] * P


@pytest.mark.parametrize("P", [2, 3])
@pytest.mark.parametrize("share", [3, 90_000])         # 90,000: still on its way when others come in
@pytest.mark.parametrize("start", [0, 2])
def test_the_block_may_be_a_part_of_out(P, share, start, world, monkeypatch):
    """Wherever in `out` it lies: what comes in must not change it before it is sent."""
    monkeypatch.setenv("REFIMPL_CHECK", "0")
    n = share * P

    def program(comm):
        out = np.full(n, -1)
        mine = out[start:start + share]
        mine[:] = part(n, comm.rank, P)
        return all_gather(mine, comm, out=out, algorithm="direct")

    for y in run(program, P):
        assert_array_equal(y, np.arange(n))


@pytest.mark.parametrize("P", range(1, 10))
@pytest.mark.parametrize("n", [0, 1, 7, 24, 100])
def test_bytes_and_messages_equal_the_formula(P, n):
    log = Ledger()
    run(gathered, P, n, ledger=log)
    for rank in range(P):
        assert log.bytes_sent(rank=rank) == 8 * traffic.direct_all_gather(n, P, rank)
        assert log.messages(rank=rank) == P - 1
        for other in range(P):
            assert log.messages(rank=rank, dst=other) == (rank != other)
    assert log.bytes_sent(collective="all_gather") == log.bytes_sent() == 8 * (P - 1) * n


@pytest.mark.parametrize("rendezvous", [True, False])
@pytest.mark.parametrize("P", range(1, 10))
def test_it_takes_one_latency_and_a_port_full_of_blocks(P, rendezvous):
    n = 12 * P

    def program(comm):
        gathered(comm, n)
        return comm.clock

    for clock in run(program, P, network=Network(Link(ALPHA, BETA)), rendezvous=rendezvous):
        assert clock == pytest.approx(alpha_beta.direct_all_gather(P, ALPHA, n * 8 * BETA), rel=1e-12)


def test_without_out_it_is_refused_and_says_what_works():
    log = Ledger()
    with pytest.raises(ValueError, match="algorithm='direct' without out: .* give out, or use 'ring'"):
        run(lambda comm: all_gather(np.ones(2), comm, algorithm="direct"), 2, ledger=log)
    assert log.messages() == 0


def test_ranks_that_take_different_algorithms_are_told():
    def program(comm):
        all_gather(part(4, comm.rank, 2), comm, out=np.empty(4, int), algorithm=["direct", "ring"][comm.rank])

    with pytest.raises(CollectiveMismatchError, match="algorithm=direct.*algorithm=ring|ring.*algorithm=direct"):
        run(program, 2)


def test_the_function_itself_works_on_rows():
    def program(comm):
        x, out = np.full((comm.rank + 1, 2), comm.rank), np.empty((3, 2), int)       # chunks of 3 rows over 2: 1 and 2
        return direct.all_gather(x, comm, out).tolist()

    assert run(program, 2) == [[[0, 0], [1, 1], [1, 1]]] * 2
