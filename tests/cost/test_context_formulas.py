"""Formulas of context parallelism: the virtual clock of the operators as they run, closed forms, numbers of papers."""

import numpy as np
import pytest
from cp_models import inputs_of

from refimpl import Link, Network, run
from refimpl.cost import context as cost
from refimpl.model.attention import NO_DROPOUT
from refimpl.parallel.context import core
from refimpl.parallel.context_layout import LAYOUTS, all_positions

ALPHA, BETA = 50, 1                                # whole numbers, like all pairs and bytes: sums of seconds are exact
B, N, G, D = 1, 2, 1, 1                            # sequences, key-value heads, query heads each, features
QUICK, SLOW = 64, 1                                # FLOPs a second, so that messages decide, or work does
LATE = 10**7
SIZES = [(P, 4 * P * each) for P in (1, 2, 3, 4, 5, 8) for each in (1, 3)]
both_ways = pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])


def clocks(kind, P, s, layout, causal, flops, U=None, heads=(N, G)):
    """Per rank: the seconds of the forward, and of the backward, which all begin at once."""
    def program(comm):
        forward, backward = core(comm, kind, layout, U)
        mine = all_positions(s, P, layout)[comm.rank]
        q, k, v, dout = inputs_of(np, B, s // P, *heads, D).values()
        _, saved = forward(q, k, v, causal, mine, mine, NO_DROPOUT)
        seconds = comm.clock
        comm.elapse(LATE - seconds)
        backward(dout, saved)
        return seconds, comm.clock - LATE

    return run(program, P, network=Network(Link(ALPHA, BETA), flops=flops))


def step_seconds(P, s, rank, layout, causal, flops, way="forward", heads=N * G):
    return [cost.attention_flops(B, heads, D, cost.step_pairs(s, P, rank, step, layout, causal))[way] / flops
            for step in range(P)]


def block_seconds(P, s, heads=N):
    """What a block takes to leave; its gradients, in float64, too, take as long."""
    return BETA * cost.kv_block(B, s, heads, D, P) * 8


# -- the ring ---------------------------------------------------------------------------------------------------------

@both_ways
@pytest.mark.parametrize("flops", [QUICK, SLOW])
@pytest.mark.parametrize(("P", "s"), SIZES)
def test_a_balanced_ring_takes_the_longer_of_computing_and_sending_in_each_step(P, s, flops, causal):
    layout = "zigzag" if causal else "contiguous"
    block = block_seconds(P, s)
    forward = cost.ring_seconds(step_seconds(P, s, 0, layout, causal, flops), ALPHA + block)
    compute = [step_seconds(P, s, rank, layout, causal, flops, "backward") for rank in range(P)]
    backward = cost.ring_clocks(compute, ALPHA, block, block)
    assert clocks("ring", P, s, layout, causal, flops) == [(forward, seconds) for seconds in backward]


def test_of_which_both_kinds_occur():
    """Else the test above would say less than it seems to."""
    compute = [step_seconds(4, 48, 0, "zigzag", True, flops)[1] for flops in (QUICK, SLOW)]
    assert compute[0] < ALPHA + block_seconds(4, 48) < compute[1]


@both_ways
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("flops", [QUICK, SLOW, 4])
@pytest.mark.parametrize(("P", "s"), SIZES)
def test_every_ranks_clock_whatever_the_layout(P, s, layout, flops, causal):
    work = lambda way: [step_seconds(P, s, rank, layout, causal, flops, way) for rank in range(P)]
    block = block_seconds(P, s)
    forward, backward = zip(*clocks("ring", P, s, layout, causal, flops), strict=True)
    assert list(forward) == cost.ring_clocks(work("forward"), ALPHA, block)
    assert list(backward) == cost.ring_clocks(work("backward"), ALPHA, block, block)


def test_the_recursion_is_the_closed_form_where_all_have_as_much_to_do():
    for P in range(1, 7):
        compute = [7 + (step * 5) % 4 for step in range(P)]
        for transfer in (0, 5, 8, 100):
            assert cost.ring_clocks([compute] * P, 0, transfer) == [cost.ring_seconds(compute, transfer)] * P


@pytest.mark.parametrize("P", [1, 2, 3, 4, 5, 8])
def test_of_the_backward_all_is_hidden_but_the_way_home_if_the_work_is_long_enough(P):
    compute = [[100 + step for step in range(P)]] * P
    home = 5 + 30 if P > 1 else 0
    assert cost.ring_clocks(compute, 5, 20, 30) == [sum(compute[0]) + home] * P


@pytest.mark.parametrize(("P", "seconds"), [
    (1, 0), (2, 5 + 20 + 5 + 30), (3, 5 + 20 + 20 + 5 + 30 + 5 + 30), (4, 5 + 20 + 20 + 30 + 20 + 5 + 30 + 5 + 30)])
def test_and_without_work_ports_are_busy_all_the_way_round(P, seconds):
    """Blocks of 20 seconds, gradients of 30: until the last steps, which each wait for what has just left."""
    assert cost.ring_clocks([[0] * P] * P, 5, 20, 30) == [seconds] * P


# -- the others -------------------------------------------------------------------------------------------------------

@both_ways
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("P", "s"), SIZES)
def test_gathering_hides_nothing(P, s, layout, causal):
    """Every rank gathers, then works; backward it waits, then, for those who have more to do."""
    block, flops = block_seconds(P, s), QUICK
    found = clocks("gather", P, s, layout, causal, flops)
    for rank, (forward, backward) in enumerate(found):
        work = cost.attention_flops(B, N * G, D, cost.pairs(s, P, rank, layout, causal))
        assert forward == cost.gather_seconds(P, work["forward"] / flops, ALPHA, block)
        if layout == "zigzag" or not causal:
            assert backward == cost.gather_seconds(P, work["backward"] / flops, ALPHA, block, block)


@both_ways
@pytest.mark.parametrize("heads", [(8, 1), (4, 2), (1, 8), (2, 4)], ids=str)
@pytest.mark.parametrize("P", [1, 2, 4, 8])
def test_ulysses_exchanges_before_and_after(P, heads, causal):
    s, flops = 32, QUICK
    qkv, out = (BETA * part for part in cost.ulysses_parts(B, s, 8, heads[0], D, P, 8))
    work = cost.attention_flops(B, 8 // P, D, s * (s + 1) // 2 if causal else s * s)
    forward, backward = (cost.ulysses_seconds(P, work[way] / flops, ALPHA, qkv, out) for way in work)
    assert clocks("ulysses", P, s, "zigzag", causal, flops, heads=heads) == [(forward, backward)] * P


@pytest.mark.parametrize("flops", [QUICK, SLOW])
@pytest.mark.parametrize(("P", "U"), [(4, 2), (4, 1), (4, 4), (8, 2), (6, 3)])
def test_a_hybrid_is_a_ring_between_two_exchanges(P, U, flops):
    """U ranks have together what one of P/U ranks has of a zigzag layout: the ring is as balanced."""
    s, R, n = 8 * P, P // U, 6 if U == 3 else 4
    qkv, out = (BETA * part for part in cost.ulysses_parts(B, s * U // P, n, n, D, U, 8))
    block = block_seconds(R, s, n // U)
    steps = {way: step_seconds(R, s, 0, "zigzag", True, flops, way, n // U) for way in ("forward", "backward")}
    ring = (cost.ring_seconds(steps["forward"], ALPHA + block),
            cost.ring_clocks([steps["backward"]] * R, ALPHA, block, block)[0])
    expected = tuple(cost.ulysses_seconds(U, seconds, ALPHA, qkv, out) for seconds in ring)
    assert clocks("hybrid", P, s, "zigzag", True, flops, U, (n, 1)) == [expected] * P


# -- work and balance -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("P", [1, 2, 4, 8])
@pytest.mark.parametrize("each", [2, 6, 512])
def test_how_well_each_layout_balances(P, each):
    s = P * each
    assert cost.efficiency(s, P, "contiguous") == pytest.approx((s + 1) / ((2 * P - 1) * s / P + 1), rel=1e-14)
    assert cost.efficiency(s, P, "striped") == pytest.approx((s + 1) / (s + P), rel=1e-14)
    assert cost.efficiency(s, P, "zigzag") == 1


@pytest.mark.parametrize(("P", "tends_to"), [(1, 1), (2, 2 / 3), (4, 4 / 7), (8, 8 / 15)])
def test_a_contiguous_causal_ring_tends_to_P_of_2P_1(P, tends_to):
    """53.3% on 8 ranks; zhuzilin/ring-flash-attention measured 51 to 54%."""
    assert cost.efficiency(2**20, P, "contiguous") == pytest.approx(tends_to, rel=1e-4)


@pytest.mark.parametrize("P", [2, 3, 4, 8])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_and_takes_that_much_longer_on_the_clock(P, layout):
    """With free messages: time of the layout = even share of the work / efficiency."""
    s = 4 * P
    network = Network(Link(0, 0), flops=1)

    def program(comm):
        forward, _ = core(comm, "ring", layout)
        mine = all_positions(s, P, layout)[comm.rank]
        q, k, v, _ = inputs_of(np, 1, s // P, 1, 1, 1).values()
        forward(q, k, v, True, mine, mine, NO_DROPOUT)
        return comm.clock

    even = 4 * s * (s + 1) / 2 / P
    assert max(run(program, P, network=network)) == pytest.approx(even / cost.efficiency(s, P, layout), rel=1e-14)


@pytest.mark.parametrize(("P", "rank", "s"), [(4, 0, 32), (4, 3, 32), (8, 5, 64)])
def test_the_sums_over_steps_in_the_docstring(P, rank, s):
    c = s // P
    assert cost.pairs(s, P, rank, "contiguous") == c * (c + 1) // 2 + rank * c * c
    assert cost.pairs(s, P, rank, "striped") == P * c * (c - 1) // 2 + (rank + 1) * c
    assert cost.pairs(s, P, rank, "zigzag") == (s + 1) * c // 2


# -- numbers of papers ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("flops", "bandwidth", "thousands"), [
    (312e12, 300e9, 1.0), (123e12, 112e9, 1.1), (275e12, 268e9, 1.0), (197e12, 186e9, 1.1)])
def test_the_smallest_blocks_of_liu_et_al(flops, bandwidth, thousands):
    """Table 2: A100 with NVLink, TPU v3, v4 and v5e. (The A100's 24.5 over InfiniBand is 24.96 by their equation.)"""
    assert round(cost.hiding_block(flops, 1 / bandwidth) / 1000, 1) == thousands


@both_ways
def test_of_which_computing_takes_as_long_as_sending(causal):
    flops, beta, group, P = 3e9, 1e-6, 4, 4
    c = cost.hiding_block(flops, beta, group, item=2, causal=causal)
    s = int(c) * P
    assert c == int(c) and c % 2 == 0
    compute = cost.attention_flops(2, 3 * group, 16, cost.step_pairs(s, P, 0, 1, "zigzag", causal))["forward"] / flops
    assert compute == pytest.approx(beta * 2 * cost.kv_block(2, s, 3, 16, P), rel=1e-14)


def test_ulysses_sends_4_b_s_h_of_P_and_the_ring_the_more_the_more_ranks():
    """Jacobs et al. 2023: N tokens of h features, 4 N h / P for each rank; a ring 2 N h (P-1)/P."""
    N, heads, d = 2**20, 64, 128
    h = heads * d
    for P in (2, 8, 64):
        ulysses, ring = (f["forward"] for f in (cost.ulysses_attention(1, N, heads, heads, d, P),
                                                cost.ring_attention(1, N, heads, d, P)))
        assert ulysses == 2 * 4 * N * h // P * (P - 1) // P
        assert ring == 2 * 2 * N * h // P * (P - 1)


def test_not_O_1_but_O_s_of_P():
    """Liu et al. 2023, table 1: what a rank holds grows with its block, and is constant only if ranks do with s."""
    whole = cost.kept(1, 2**20, 32, 8, 128, 1)
    assert [cost.kept(1, 2**20, 32, 8, 128, P) * P for P in (2, 8, 64)] == [whole] * 3
    assert cost.kept(1, 2**21, 32, 8, 128, 2) == whole


def test_gradients_of_16_bits_travel_in_32():
    sent = cost.ring_attention(1, 1024, 8, 128, 4)
    assert sent["backward"] == 3 * sent["forward"]
    wide = cost.ring_attention(1, 1024, 8, 128, 4, item=4)
    assert wide["backward"] == 2 * wide["forward"] == 4 * sent["forward"]
