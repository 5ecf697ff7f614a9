"""What `auto` takes: by size and world, the same on every rank, and never uncounted where somebody counts."""

import numpy as np
import pytest
from backends import BACKENDS

from refimpl import Ledger, Link, Network, run
from refimpl.collectives import all_gather, all_reduce
from refimpl.collectives.choice import DOUBLING_UP_TO, OURS_FROM, pick_all_gather, pick_all_reduce
from refimpl.cost import traffic

SMALL, MIDDLE, LARGE = DOUBLING_UP_TO, DOUBLING_UP_TO + 1, OURS_FROM                  # bytes
OURS = ["doubling", "ring", "ring"]


def picks(comm, bare, xp=np):
    """What is taken for a small, a middle and a large all-reduce, and for an all-gather."""
    with comm.collective("all_reduce", bare=bare):
        sizes = [pick_all_reduce(xp.zeros(n, np.uint8), comm) for n in (SMALL, MIDDLE, LARGE)]
        return [*sizes, pick_all_gather(xp.zeros(SMALL, np.uint8), comm)]


@pytest.mark.parametrize("network", [None, Network(Link(0, 0))])
@pytest.mark.parametrize("bare", [False, True])
def test_in_this_process_doubling_up_to_a_size_and_then_the_ring(bare, network):
    assert run(picks, 3, bare, network=network) == [[*OURS, "ring"]] * 3


@pytest.mark.mpi(2)
def test_under_mpi_its_own_up_to_a_size_where_nobody_counts_or_checks(monkeypatch):
    def choices(*args, ledger=None):
        [first, second] = run(picks, 2, *args, ledger=ledger)
        assert first == second
        return first

    monkeypatch.setenv("REFIMPL_CHECK", "0")
    assert choices(True) == ["native", "native", "rabenseifner", "ring"]
    assert choices(False) == [*OURS, "ring"]                          # without out: ranks may disagree
    assert choices(True, ledger=Ledger()) == [*OURS, "ring"]
    assert choices(True, BACKENDS["cupy stand-in"]) == [*OURS, "ring"]
    monkeypatch.setenv("REFIMPL_CHECK", "1")
    assert choices(True) == [*OURS, "ring"]


@pytest.mark.mpi(2)
def test_a_byte_less_than_ours_win_at_is_mpis_own(monkeypatch):
    monkeypatch.setenv("REFIMPL_CHECK", "0")

    def program(comm):
        with comm.collective("all_reduce", bare=True):
            return pick_all_reduce(np.zeros(OURS_FROM - 1, np.uint8), comm)

    assert run(program, 2) == ["native"] * 2


@pytest.mark.mpi(3)
def test_more_than_two_ranks_gather_directly(monkeypatch):
    monkeypatch.setenv("REFIMPL_CHECK", "0")
    assert run(picks, 3, True) == [["native", "native", "ring", "direct"]] * 3


@pytest.mark.mpi(2)
def test_in_the_background_it_is_never_mpis_own_which_spins_while_it_waits(monkeypatch):
    monkeypatch.setenv("REFIMPL_CHECK", "0")
    assert run(lambda comm: comm.background(lambda twin: picks(twin, True)).wait(), 2) == [[*OURS, "ring"]] * 2


@pytest.mark.parametrize("P", [2, 3])
def test_what_auto_takes_is_counted_alike_in_both_worlds(P, world, monkeypatch):
    monkeypatch.setenv("REFIMPL_CHECK", "0")
    small, large = DOUBLING_UP_TO // 8, DOUBLING_UP_TO // 8 + 1       # elements

    def program(comm):
        for n in (small, large):
            with comm.phase(n):
                all_reduce(np.ones(n), comm, out=np.empty(n))
        with comm.phase("gather"):
            mine = np.ones(traffic.chunk(10, comm.size, comm.rank))
            all_gather(mine, comm, out=np.empty(10))

    log = Ledger()
    run(program, P, ledger=log)
    assert log.bytes_sent(phase=small) == 8 * traffic.doubling_all_reduce(small, P)
    for rank in range(P):
        assert log.bytes_sent(rank=rank, phase=large) == 8 * traffic.ring_all_reduce(large, P, rank)
        assert log.bytes_sent(rank=rank, phase="gather") == 8 * traffic.ring_all_gather(10, P, rank)
