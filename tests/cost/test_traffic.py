"""The formulas of traffic, against sums done another way and numbers from papers. The tests of each collective hold the
ledger's counts to them; the last one here does so in every world."""

import numpy as np
import pytest

from refimpl import Ledger, run
from refimpl.collectives import all_gather, all_reduce, all_to_all, broadcast, gather, reduce_scatter, scatter
from refimpl.cost import traffic

RANKS = range(1, 10)
SIZES = [0, 1, 2, 5, 10, 100, 101]


@pytest.mark.parametrize("P", RANKS)
@pytest.mark.parametrize("n", SIZES)
def test_chunks_cover_everything_once_and_differ_by_at_most_one(P, n):
    sizes = [traffic.chunk(n, P, k) for k in range(P)]
    assert sum(sizes) == n and max(sizes) - min(sizes) <= 1
    assert traffic.chunk(n, P, P) == sizes[0] and traffic.chunk(n, P, -1) == sizes[-1]


@pytest.mark.parametrize("P", RANKS)
@pytest.mark.parametrize("n", SIZES)
def test_a_ring_sends_every_element_over_all_links_but_one_each_way(P, n):
    assert sum(traffic.ring_reduce_scatter(n, P, rank) for rank in range(P)) == (P - 1) * n
    assert sum(traffic.ring_all_gather(n, P, rank) for rank in range(P)) == (P - 1) * n
    assert sum(traffic.ring_all_reduce(n, P, rank) for rank in range(P)) == 2 * (P - 1) * n


@pytest.mark.parametrize("P", [1, 2, 4, 5, 10, 20])
def test_where_the_ranks_divide_the_array_a_ring_attains_the_lower_bound_on_every_rank(P):
    """Patarasuk & Yuan 2009: an all-reduce of n must send 2 (P-1)/P n per rank."""
    for rank in range(P):
        assert traffic.ring_all_reduce(100, P, rank) * P == 2 * (P - 1) * 100


@pytest.mark.parametrize("n, per_rank, all_ranks", [(100, 150, 600), (10, 15, 60), (0, 0, 0)])
def test_A01_the_numbers_of_a_ring_of_four(n, per_rank, all_ranks):
    assert [traffic.ring_all_reduce(n, 4, rank) for rank in range(4)] == [per_rank] * 4
    assert sum(traffic.ring_all_reduce(n, 4, rank) for rank in range(4)) == all_ranks
    assert traffic.ring_messages(4, passes=2) == 6
    assert traffic.ring_all_reduce(n, 1, 0) == traffic.ring_messages(1, passes=2) == 0


@pytest.mark.parametrize("P, per_element", [
    (1, 0), (2, 2), (3, 4), (4, 8), (5, 10), (6, 12), (7, 14), (8, 24), (9, 26)])
def test_doubling_sends_this_many_arrays_in_all(P, per_element):
    """5 ranks: one hands over, four exchange twice, one result comes back: 1 + 8 + 1."""
    assert traffic.doubling_all_reduce(1, P) == traffic.doubling_messages(P) == per_element
    assert traffic.doubling_all_reduce(7, P) == 7 * per_element


@pytest.mark.parametrize("P", range(1, 20))
@pytest.mark.parametrize("n", SIZES)
def test_a_gathered_block_climbs_one_level_for_each_bit_of_its_rank(P, n):
    """In a binomial tree rank r hands its block to r without its lowest bit, and so on down to 0."""
    assert traffic.tree_gather(n, P) == sum(traffic.chunk(n, P, r) * r.bit_count() for r in range(P))


def test_all_to_all_keeps_a_ranks_own_part():
    assert [traffic.all_to_all([3, 0, 5], rank) for rank in range(3)] == [5, 8, 3]
    assert traffic.all_to_all([4], 0) == 0


def test_a_tensor_parallel_mlp_sends_two_all_reduces_whatever_its_hidden_size():
    """Shoeybi et al. 2019, section 3: one of the output forward, one of the input's gradient backward."""
    assert traffic.tensor_parallel_mlp(rows=10, inputs=8, outputs=4, P=4, rank=0) == {"forward": 60, "backward": 120}
    assert traffic.tensor_parallel_mlp(rows=10, inputs=8, outputs=4, P=1, rank=0) == {"forward": 0, "backward": 0}


@pytest.mark.parametrize("t", [1, 2, 4, 8])
def test_a_tensor_parallel_layer_sends_8_or_12_and_sequence_parallel_10_or_14(t):
    """Times b s h (t-1)/t. Narayanan et al. 2021, section 3.2; Korthikanti et al. 2022, section 4.2.2."""
    unit = 2 * 16 * 24 * (t - 1) // t
    for sequence_parallel, recompute, forward, backward in (
            (False, "none", 4, 4), (False, "selective", 4, 4), (False, "full", 4, 8),
            (True, "none", 4, 6), (True, "selective", 4, 6), (True, "full", 4, 10)):
        for rank in range(t):
            sent = traffic.tensor_parallel_block(2, 16, 24, t, rank, sequence_parallel, recompute)
            assert sent == {"forward": forward * unit, "backward": backward * unit}


@pytest.mark.parametrize("P", RANKS)
@pytest.mark.parametrize("s", SIZES)
def test_over_all_ranks_both_ends_send_whole_arrays_p_minus_1_times(P, s):
    """An all-reduce is two of them; scattered and gathered shards of any lengths add up to the whole."""
    whole = (P - 1) * 3 * s * 5
    over_ranks = lambda formula, *more: [sum(formula(3, s, 5, P, r, *more)[phase] for r in range(P))
                                         for phase in ("forward", "backward")]
    assert over_ranks(traffic.vocabulary_parallel_embedding) == [2 * whole, 0]
    assert over_ranks(traffic.vocabulary_parallel_embedding, True) == [whole, whole]
    assert over_ranks(traffic.vocabulary_parallel_head) == [0, 2 * whole]
    assert over_ranks(traffic.vocabulary_parallel_head, True) == [whole, 2 * whole]
    assert over_ranks(traffic.tensor_parallel_block) == [4 * whole, 4 * whole]
    assert over_ranks(traffic.tensor_parallel_block, True) == [4 * whole, 6 * whole]


def test_a_cut_softmax_sends_3_or_4_numbers_a_position_whatever_the_vocabulary():
    assert traffic.vocabulary_parallel_loss(100, 4, 0) == 3 * 150
    assert traffic.vocabulary_parallel_loss(100, 4, 0, smoothing=True) == 4 * 150
    assert traffic.vocabulary_parallel_loss(100, 1, 0) == 0


def test_addends_are_sent_once_a_step():
    """2 layers of 2 norms, and a last one: 5 weights and 5 biases of 24; 2 layers of a key and a value head of 2."""
    assert traffic.sequence_parallel_gradients(24, 2, 4, 0) == 240 * 3 // 2
    assert traffic.sequence_parallel_gradients(24, 2, 4, 0, norm_bias=False, positions=1) == 144 * 3 // 2
    assert traffic.shared_heads_gradients(24, 2, heads=12, kv_heads=12, t=4, rank=0) == 0
    assert traffic.shared_heads_gradients(24, 2, heads=12, kv_heads=4, t=4, rank=0) == 0
    for rank in range(4):
        assert traffic.shared_heads_gradients(24, 2, heads=12, kv_heads=2, t=4, rank=rank) == 2 * 2 * 2 * 24
        assert traffic.shared_heads_gradients(24, 2, heads=12, kv_heads=2, t=4, rank=rank, bias=True) == 2 * 2 * 2 * 25


@pytest.mark.parametrize("P", [1, 2, 3, 4])
def test_what_is_counted_equals_the_formulas_in_every_world(P, world):
    """Under MPI as in one process: elements of 8 bytes, sizes that do not divide, empty chunks."""
    sizes = [1, 10, 13]

    def program(comm):
        for n in sizes:
            x = np.zeros(n)
            with comm.phase(f"{n}"):
                mine = reduce_scatter(x, comm)
                all_gather(mine, comm)
                all_reduce(x, comm, algorithm="ring")
                broadcast(x, comm)
                scatter(x if comm.rank == 0 else None, comm)
                gather(mine, comm)
                all_to_all([x[:k] for k in range(P)], comm)
            with comm.phase("doubling"):
                all_reduce(x, comm, algorithm="doubling", out=x)

    log = Ledger()
    run(program, P, ledger=log)
    for n in sizes:
        sent = lambda collective, rank=None, n=n: log.bytes_sent(rank, f"{n}", collective=collective) // 8
        for rank in range(P):
            assert sent("all_reduce", rank) == traffic.ring_all_reduce(n, P, rank)
            assert sent("reduce_scatter", rank) == traffic.ring_reduce_scatter(n, P, rank)
            assert sent("all_gather", rank) == traffic.ring_all_gather(n, P, rank)
            assert sent("all_to_all", rank) == traffic.all_to_all([min(k, n) for k in range(P)], rank)
        assert sent("broadcast") == traffic.tree_broadcast(n, P)
        assert sent("gather") == sent("scatter") == traffic.tree_gather(n, P)
    assert log.bytes_sent(phase="doubling") == 8 * traffic.doubling_all_reduce(sum(sizes), P)
    assert log.messages(phase="doubling") == 3 * traffic.doubling_messages(P)
