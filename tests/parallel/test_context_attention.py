"""Ring, gathered, Ulysses and hybrid attention equal full attention: values, gradients, bytes, work, what is kept."""

import tracemalloc
from functools import partial

import numpy as np
import pytest
from backends import device_array
from cp_models import DROPOUT, SHARDED, inputs_of, on_ranks, truth
from drawing import relative
from numpy.testing import assert_array_equal

from refimpl import CollectiveMismatchError, Ledger, run
from refimpl.arrays import to_host
from refimpl.cost import context as cost
from refimpl.measure.meter import held_bytes
from refimpl.model.attention import NO_DROPOUT, attention, attention_backward
from refimpl.model.blockwise import blockwise_attention, blockwise_attention_backward
from refimpl.parallel.context import KINDS, core
from refimpl.parallel.context_layout import LAYOUTS, all_positions, shard, unshard
from refimpl.parallel.gather_attention import gather_attention
from refimpl.parallel.ring_attention import ring_attention, ring_attention_backward
from refimpl.parallel.ulysses import columns, ulysses_attention, ulysses_attention_backward
from refimpl.precision import narrow, wide
from refimpl.testing import assert_sharded_equal

both_ways = pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
RINGS = [("ring", P, None, shape) for P in (1, 2, 3, 4, 5) for shape in ((1, 2, 1, 1, 3), (2, 4, 2, 3, 4))]
GATHERS = [("gather", P, None, shape) for P in (1, 2, 3, 4, 5) for shape in ((2, 4, 2, 3, 4),)]
ULYSSES = [("ulysses", P, None, (2, 4, *heads, 4)) for P, *heads in (
    (1, 2, 3), (2, 2, 3), (2, 1, 4), (3, 3, 1), (4, 4, 2), (4, 8, 1), (4, 2, 2), (4, 1, 4), (5, 5, 1), (5, 1, 5))]
HYBRIDS = [("hybrid", P, U, (2, 4, *heads, 4)) for P, U, *heads in (
    (2, 1, 1, 3), (2, 2, 2, 1), (4, 2, 2, 2), (4, 2, 1, 2), (4, 4, 2, 2), (6, 3, 3, 1), (6, 2, 4, 1))]
VARIANTS = [pytest.param(*case, id=f"{case[0]}{case[2] or ''} on {case[1]}, {case[3][2]}x{case[3][3]} heads")
            for case in RINGS + GATHERS + ULYSSES + HYBRIDS]


def bytes_of(kind, b, s, n, g, d, P, U, item):
    """The formula's bytes, by phase: the same on every rank."""
    return {
        "ring": lambda: cost.ring_attention(b, s, n, d, P, item),
        "gather": lambda: cost.gather_attention(b, s, n, d, P, item),
        "ulysses": lambda: cost.ulysses_attention(b, s, n * g, n, d, P, item),
        "hybrid": lambda: cost.hybrid_attention(b, s, n * g, n, d, P, U, item),
    }[kind]()


def check(xp, kind, P, U, shape, layout, causal, dtype="float64", dropout=NO_DROPOUT):
    """Values and gradients against full attention, each rank's bytes and work against the formulas."""
    b, each, n, g, d = shape
    log, s = Ledger(), each * P
    sent = bytes_of(kind, b, s, n, g, d, P, U, np.dtype(dtype).itemsize)
    traffic = {phase: lambda size, rank, phase=phase: sent[phase] for phase in sent}
    assert_sharded_equal(on_ranks(kind, layout, causal, U, dropout), truth(P, layout, causal, dropout),
                         inputs_of(xp, b, s, n, g, d, dtype), ranks=P, shard=SHARDED, traffic=traffic, ledger=log)
    flops = lambda phase: [log.flops(rank, phase) for rank in range(P)]
    if kind in ("ring", "gather"):
        work = [cost.attention_flops(b, n * g, d, cost.pairs(s, P, rank, layout, causal)) for rank in range(P)]
        assert {phase: flops(phase) for phase in sent} == {phase: [w[phase] for w in work] for phase in sent}
    everything = cost.attention_flops(b, n * g, d, s * (s + 1) // 2 if causal else s * s)
    assert {phase: sum(flops(phase)) for phase in sent} == everything            # no pair twice, none left out


@both_ways
@every_layout
@pytest.mark.parametrize(("kind", "P", "U", "shape"), VARIANTS)
def test_every_variant_equals_full_attention_and_sends_and_computes_what_the_formulas_say(
        kind, P, U, shape, layout, causal):
    check(np, kind, P, U, shape, layout, causal)


@every_layout
@pytest.mark.parametrize(("kind", "P", "U"), [("ring", 1, None), ("ring", 3, None), ("gather", 2, None),
                                              ("ulysses", 4, None), ("hybrid", 4, 2)])
def test_so_it_does_in_both_array_libraries_and_in_float32(xp, kind, P, U, layout):
    check(xp, kind, P, U, (2, 4, 2, 2, 4), layout, causal=True, dtype="float32")


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.parametrize(("kind", "P", "U", "shape"), [
    ("ring", 2, None, (2, 4, 2, 3, 4)), ("ring", 3, None, (1, 4, 2, 1, 3)), ("ring", 4, None, (2, 2, 1, 2, 4)),
    ("gather", 3, None, (2, 4, 2, 1, 4)), ("ulysses", 2, None, (2, 4, 2, 1, 4)), ("ulysses", 4, None, (2, 2, 2, 2, 4)),
    ("hybrid", 4, 2, (2, 4, 2, 1, 4))])
def test_so_it_does_in_every_world(world, kind, P, U, shape, layout):
    check(np, kind, P, U, shape, layout, causal=True)


@every_layout
@pytest.mark.parametrize(("kind", "P", "U"), [("ring", 3, None), ("gather", 3, None), ("ulysses", 3, None),
                                              ("hybrid", 4, 2), ("ulysses", 6, None)])
def test_dropout_drops_what_one_device_drops(kind, P, U, layout):
    """By global sequence, head and positions: also where heads were exchanged, and head 1 came from elsewhere."""
    check(np, kind, P, U, (2, 4, 2 if P != 3 else 3, 3, 4), layout, True, dropout=DROPOUT)


@pytest.mark.parametrize("block", [1, 2, 5, 256])
def test_any_size_of_tiles_will_do(block):
    for kind in ("ring", "gather", "ulysses"):
        assert_sharded_equal(on_ranks(kind, "zigzag", block=block), truth(2, "zigzag"), inputs_of(np, 1, 20, 2, 1, 3),
                             ranks=2, shard=SHARDED)


def attend_all(comm, arrays, program):
    """The program on this rank's part, zigzag, of whole arrays."""
    everybody = all_positions(arrays[0].shape[1], comm.size)
    return program(comm, *(shard(x, everybody, comm.rank) for x in arrays))


@pytest.mark.parametrize(("kind", "P", "U"), [("ring", 3, None), ("gather", 3, None), ("ulysses", 3, None),
                                              ("hybrid", 4, 2)])
def test_arrays_in_fortran_order_are_the_same_arrays(world, kind, P, U):
    """MPI sends memory as it lies: what is not made C-contiguous before arrives transposed."""
    arrays = inputs_of(np, 2, 4, 6, 2, 4)
    found = [run(on_ranks(kind, "zigzag", ulysses=U), P, *(np.asarray(x, order=order) for x in arrays.values()))
             for order in "CF"]
    for one, other in zip(*found, strict=True):
        for name, x in one.items():
            np.testing.assert_allclose(other[name], x, rtol=1e-12, atol=1e-14)


# -- numbers ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("kind", "U"), [("ring", None), ("gather", None), ("ulysses", None), ("hybrid", 2)])
def test_float32_errors_do_not_grow_with_the_ranks(kind, U):
    """A few roundings, measured against float64: merging P partial softmaxes costs hardly more than not merging."""
    narrow_, exact = inputs_of(np, 1, 64, 8, 1, 8, "float32"), None
    for P in (1, 2, 4, 8):
        if P % (U or 1):
            continue
        everybody = all_positions(64, P, "zigzag")
        results = run(attend_all, P, list(narrow_.values()), on_ranks(kind, "zigzag", ulysses=U, block=16))
        if exact is None:
            exact = truth(1, "zigzag")(**{name: x.astype("float64") for name, x in narrow_.items()})
        for name, want in exact.items():
            found = unshard([result[name] for result in results], everybody)
            assert found.dtype == np.float32
            assert relative(found, want) < 5e-7, (name, P)


@pytest.mark.parametrize("dtype", ["float16", "uint16"])
@pytest.mark.parametrize(("kind", "P", "U"), [("ring", 1, None), ("ring", 4, None), ("gather", 4, None),
                                              ("ulysses", 1, None), ("ulysses", 4, None), ("hybrid", 4, 2)])
def test_16_bits_travel_as_16_bits_and_add_up_as_32(xp, kind, U, dtype, P):
    """And are rounded once, in the end: they are as near to the truth as what blockwise attention makes of them.

    But for Ulysses with more ranks than key-value heads: there addends of a copied head come home in 16 bits.
    """
    log, everybody = Ledger(), all_positions(64, P, "zigzag")
    stored = [narrow(x, np.dtype(dtype)) for x in inputs_of(np, 2, 64, 2, 2, 4, "float32").values()]
    results = run(attend_all, P, [device_array(xp, x) for x in stored], on_ranks(kind, "zigzag", ulysses=U), ledger=log)
    out, saved = blockwise_attention(*stored[:3])
    gradients = dict(zip(("dq", "dk", "dv"), blockwise_attention_backward(stored[3], saved), strict=True))
    exact = truth(1, "zigzag")(*(wide(x).astype("float64") for x in stored))
    for name, want in exact.items():
        found = to_host(unshard([result[name] for result in results], everybody))
        assert found.dtype == dtype
        allowed = 1.1 * relative(wide(({"out": out} | gradients)[name]), want)
        if kind == "ulysses" and P > 2 and name in ("dk", "dv"):
            allowed = 5e-3 if dtype == "float16" else 2e-2
        assert relative(wide(found), want) < allowed, name
    sent = bytes_of(kind, 2, 64, 2, 2, 4, P, U, 2)
    assert {phase: log.bytes_sent(0, phase) for phase in sent} == sent


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_A17_nothing_overflows_however_large_the_scores(dtype):
    """Each step's partial softmax is about another maximum, thousands apart; whole numbers, so that they are exact.

    dq and dk are differences of almost equal numbers then, in any attention: what is left of them is rounding.
    """
    arrays = inputs_of(np, 1, 16, 1, 2, 4, dtype)
    arrays |= {"q": np.rint(3000 * arrays["q"]), "k": np.rint(3 * arrays["k"])}
    only = lambda function: lambda *args, **inputs: {name: x for name, x in function(*args, **inputs).items()
                                                     if name in ("out", "dv")}
    with np.errstate(all="raise", under="ignore"):
        for layout in LAYOUTS:
            assert_sharded_equal(only(on_ranks("ring", layout)), only(truth(4, layout)), arrays, 4, SHARDED)


# -- the work that causality saves ------------------------------------------------------------------------------------

def test_a_block_of_the_future_is_not_looked_at():
    """NaN on the last rank spreads to nobody whose queries come before it; without causality it spreads to all."""
    def program(comm, causal):
        q, k, v, dout = inputs_of(np, 1, 4, 1, 1, 3).values()
        k = k * (np.nan if comm.rank == 3 else 1)
        everybody = all_positions(16, 4, "contiguous")
        out, saved = ring_attention(q, k, v, comm, everybody, causal)
        dq, _, _ = ring_attention_backward(dout, saved)
        return bool(np.isfinite(out).all() and np.isfinite(dq).all())

    assert run(program, 4, True) == [True, True, True, False]
    assert run(program, 4, False) == [False] * 4


@pytest.mark.parametrize(("layout", "work"), [
    ("contiguous", [3, 7, 11, 15]), ("striped", [6, 8, 10, 12]), ("zigzag", [9, 9, 9, 9])])
@pytest.mark.parametrize("kind", ["ring", "gather"])
def test_A18_the_work_that_ranks_declare(kind, layout, work):
    log, inputs = Ledger(), inputs_of(np, 1, 2, 1, 1, 1)                 # which numbers, it does not matter
    run(on_ranks(kind, layout), 4, *inputs.values(), ledger=log)
    assert [log.flops(rank, "forward") / 4 for rank in range(4)] == work
    assert [log.flops(rank, "backward") / 10 for rank in range(4)] == work


# -- what is kept, and held -------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("kind", "U", "P"), [("ring", None, 1), ("ring", None, 4), ("gather", None, 4),
                                              ("ulysses", None, 2), ("ulysses", None, 4), ("hybrid", 2, 4),
                                              ("hybrid", 4, 4)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_rank_keeps_its_share_of_everything(kind, U, P, dtype):
    everybody = all_positions(16, P)
    q, k, v, _ = inputs_of(np, 2, 16, 2, 2, 4, dtype).values()

    def program(comm):
        forward, _ = core(comm, kind, "zigzag", U)
        mine = everybody[comm.rank]
        arguments = [shard(x, everybody, comm.rank) for x in (q, k, v)]
        return held_bytes(saved=forward(*arguments, True, mine, mine, NO_DROPOUT)[1])["saved"]

    copies = P if kind == "ulysses" else U or 1
    assert run(program, P) == [cost.kept(2, 16, 4, 2, 4, P, np.dtype(dtype).itemsize, copies)] * P


def test_while_it_computes_a_ring_holds_two_blocks_and_a_gathering_rank_all():
    """All ranks together: a ring of 8 holds what one of 4 does, a share each; gathered keys are held 8 times."""
    def peak(kind, P):
        arrays = list(inputs_of(np, 1, 1024, 4, 1, 32, "float32").values())
        tracemalloc.start()
        try:
            run(attend_all, P, arrays, on_ranks(kind, "zigzag", block=64))
            return tracemalloc.get_traced_memory()[1] / arrays[0].nbytes
        finally:
            tracemalloc.stop()

    assert peak("ring", 8) < 1.1 * peak("ring", 4)                    # 27 times q, everything included
    assert peak("gather", 8) > 2 * peak("ring", 8)                    # 77


# -- any positions ----------------------------------------------------------------------------------------------------

@both_ways
@pytest.mark.parametrize(("forward", "backward"), [(ring_attention, ring_attention_backward),
                                                   (ulysses_attention, ulysses_attention_backward)])
@pytest.mark.parametrize("everybody", [[[0, 1, 2, 3, 4], [5], [6, 7]], [[0, 7], [], [1, 2, 3, 4, 5, 6]],
                                       [[], [], [0, 1, 2, 3, 4, 5, 6, 7]], [[2], [0, 1], [3, 4, 5, 6, 7]]])
def test_ranks_may_have_any_positions_and_none(xp, everybody, forward, backward, causal):
    arrays = inputs_of(np, 2, 8, 3, 2, 4)

    def program(comm):
        q, k, v, dout = (shard(device_array(xp, x), everybody, comm.rank) for x in arrays.values())
        out, saved = forward(q, k, v, comm, everybody, causal)
        return out, *backward(dout, saved)

    found = [unshard(parts, everybody) for parts in zip(*run(program, 3), strict=True)]
    q, k, v, dout = arrays.values()
    out, saved = attention(q, k, v, causal)
    for mine, want in zip(found, (out, *attention_backward(dout, saved)), strict=True):
        assert relative(mine, want) < 1e-13


@pytest.mark.parametrize("kind", ["ring", "gather", "ulysses"])
def test_an_empty_sequence_is_no_trouble(kind):
    assert_sharded_equal(on_ranks(kind, "zigzag"), truth(2, "zigzag"), inputs_of(np, 2, 0, 2, 2, 4), ranks=2,
                         shard=SHARDED)


# -- bad input, before anything is sent -------------------------------------------------------------------------------

def refused(says, program, P=4):
    log = Ledger()
    with pytest.raises(ValueError, match=says):
        run(program, P, ledger=log)
    assert log.messages() == 0


def attend(comm, kind="ring", layout="zigzag", each=4, n=2, g=2, U=None, places=None):
    forward, _ = core(comm, kind, layout, U)
    q, k, v, _ = inputs_of(np, 1, each, n, g, 4).values()
    places = all_positions(each * comm.size, comm.size, layout)[comm.rank] if places is None else places
    return forward(q, k, v, True, places, places, NO_DROPOUT)


@pytest.mark.parametrize("kind", ["ring", "gather", "ulysses"])
def test_A18_a_sequence_that_does_not_fit_the_layout_is_refused(kind):
    refused("sequence=12 is not divisible by 2 cp = 8, .*; pad it to 16, or cut it to 8",
            lambda comm: attend(comm, kind, each=3, places=range(3)))


@pytest.mark.parametrize(("given", "says"), [
    (dict(n=3, g=2, kind="ulysses"), "heads=6 on kv_heads=3 cannot be dealt out to ulysses=4 ranks; ulysses may be 1, "
                                     "3 or 6, with a ring over the others"),
    (dict(n=6, g=2, kind="ulysses"), "heads=12 on kv_heads=6 .* may be 1, 2, 3, 6 or 12"),
    (dict(n=1, g=1, kind="hybrid", U=2), "heads=1 on kv_heads=1 .* ulysses=2 ranks; ulysses may be 1"),
    (dict(kind="hybrid", U=3), "ulysses=3 does not divide cp=4; ulysses may be 1, 2, 4"),
    (dict(kind="hybrid"), "ulysses=None with kind='hybrid': give it with kind='hybrid', and only there"),
    (dict(U=2), "ulysses=2 with kind='ring'"),
    (dict(kind="rings"), "kind='rings': expected one of ring, gather, ulysses, hybrid; nearest 'ring'"),
    (dict(layout="zigzga"), "layout='zigzga': .*; nearest 'zigzag'"),
    (dict(places=range(4)), r"rank \d of 4 was given positions 0, 1, 2, 3, but has \d+, \d+, \d+, \d+ of zigzag ones"),
])
def test_what_does_not_fit_is_named_with_what_does(given, says):
    refused(says, partial(attend, **given))


@pytest.mark.parametrize(("everybody", "says"), [
    ([[0, 1], [2, 3]], "positions of 2 ranks are given, but world has 3; expected every rank's"),
    ([[0], [1], [2]], r"rank 0 of 3 has 1 positions, but q \(1, 2, 2, 2, 4\)"),
])
def test_positions_must_be_those_of_the_arrays(everybody, says):
    q, k, v, _ = inputs_of(np, 1, 2, 2, 2, 4).values()
    for operator in (ring_attention, gather_attention, ulysses_attention):
        refused(says, lambda comm, f=operator: f(q, k, v, comm, everybody), P=3)
    refused("q .* do not fit", lambda comm: ring_attention(q, k[:, :1], v, comm, everybody), P=3)


@pytest.mark.parametrize("operator", [ring_attention, gather_attention, ulysses_attention])
@pytest.mark.parametrize(("everybody", "says"), [
    ([[1, 0], [2, 3]], r"rank 0 is given positions \[1, 0\], which do not ascend; expected \[0, 1\], and arrays in"),
    ([[0, 1], [3, 3]], r"rank 1 is given positions \[3, 3\], which do not ascend"),
    ([[0, 1], [1, 2]], "two ranks are given the same position; expected each of them once"),
])
def test_positions_ascend_and_are_all_different(operator, everybody, says):
    """Else keys would be passed over as of the future, or rows of the whole sequence never written."""
    q, k, v, _ = inputs_of(np, 1, 2, 2, 2, 4).values()
    refused(says, lambda comm: operator(q, k, v, comm, everybody), P=2)


@pytest.mark.parametrize("operator", [ring_attention, gather_attention, ulysses_attention])
def test_dropout_must_number_the_sequences_and_heads(operator):
    q, k, v, _ = inputs_of(np, 1, 2, 2, 2, 4).values()
    refused(r"dropout numbers 2 sequences and 4 heads, but q \(1, 2, 2, 2, 4\) has 1 and 4", lambda comm: operator(
        q, k, v, comm, all_positions(4, 2, "striped"), dropout=DROPOUT._replace(heads=range(4))), P=2)


def test_a_tile_has_positions():
    q, k, v, _ = inputs_of(np, 1, 2, 2, 2, 4).values()
    for operator in (ring_attention, gather_attention):
        refused("block=0: expected 1 or more", lambda comm, operator=operator: operator(
            q, k, v, comm, all_positions(4, 2, "striped"), block=0), P=2)
    for kind in KINDS:
        refused("block=0: expected 1 or more", lambda comm, kind=kind: core(comm, kind, block=0), P=2)


def test_what_cannot_be_reduced_in_chunks_is_not_gathered():
    lengths = [3, 1]
    refused(r"positions; expected \(2, 2\), the chunks .* or use ring_attention", lambda comm: gather_attention(
        *list(inputs_of(np, 1, lengths[comm.rank], 1, 1, 2).values())[:3], comm, [[0, 1, 2], [3]]), P=2)


@pytest.mark.parametrize(("arguments", "says"), [
    (lambda rank: (inputs_of(np, 1, 2, 1 + rank, 1, 2), all_positions(4, 2), True), "ranks of world disagree"),
    (lambda rank: (inputs_of(np, 1, 2, 1, 1, 2), [[0, 1], [2, 3] if rank else [2]], True),
     "positions=4.*positions=3"),
    (lambda rank: (inputs_of(np, 1, 2, 1, 1, 2), all_positions(4, 2), rank == 0), "causal=False.*causal=True"),
], ids=["heads", "lengths", "causality"])
def test_ranks_that_disagree_find_out(arguments, says):
    def program(comm):
        arrays, everybody, causal = arguments(comm.rank)
        ring_attention(*list(arrays.values())[:3], comm, everybody, causal)

    with pytest.raises(CollectiveMismatchError, match=says):
        run(program, 2)


@pytest.mark.parametrize("operator", [gather_attention, ulysses_attention])
def test_ranks_with_other_batches_find_out(operator):
    with pytest.raises((ValueError, CollectiveMismatchError), match="ranks of world disagree|shard of rank 1 has"):
        run(lambda comm: operator(*list(inputs_of(np, 1 + comm.rank, 2, 2, 1, 2).values())[:3], comm,
                                  all_positions(4, 2)), 2)


# -- the parts of Ulysses ---------------------------------------------------------------------------------------------

def test_which_heads_go_where():
    """8 query heads on 2 key-value heads, 4 ranks: groups are cut, and their key and value sent to both halves."""
    named = np.arange(1, 9.0).reshape(1, 1, 2, 4, 1)
    k, v = np.array([10.0, 20]).reshape(1, 1, 2, 1), np.array([100.0, 200]).reshape(1, 1, 2, 1)
    of = lambda rank, size: columns(named, k, v, rank, size).reshape(-1).tolist()
    assert [of(rank, 4) for rank in range(4)] == [[1, 2, 10, 100], [3, 4, 10, 100], [5, 6, 20, 200], [7, 8, 20, 200]]
    assert of(1, 2) == [5, 6, 7, 8, 20, 200]
    assert_array_equal(of(0, 1), [1, 2, 3, 4, 10, 100, 5, 6, 7, 8, 20, 200])
