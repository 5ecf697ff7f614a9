"""A whole transformer whose sequences are dealt out: loss and every gradient as on one device, with tp and dp, too."""

from dataclasses import replace

import numpy as np
import pytest
from backends import device_array
from tp_models import (
    GPT2,
    LLAMA,
    assert_same,
    joined,
    loss_on_one_device,
    model_example,
    on_device,
    on_host,
    whole_place,
    with_kv,
)

from refimpl import Layout, Ledger, Mesh, run
from refimpl.arrays import to_host
from refimpl.collectives import all_reduce
from refimpl.cost import context as cost
from refimpl.model import transformer as single
from refimpl.model.loss import cross_entropy, cross_entropy_backward
from refimpl.parallel import data, heads, shards, transformer
from refimpl.parallel.context import core, on_rank
from refimpl.parallel.context_layout import LAYOUTS, all_positions, next_tokens, shard, unshard

LENGTH, SEQUENCES = 24, 4                                   # 24 positions divide by 2 cp for 2, 3 and 4 ranks
CONFIGS = {"gpt2": replace(GPT2, context=LENGTH), "llama": with_kv(LLAMA, 4)}
both_families = pytest.mark.parametrize("family", CONFIGS)


def example(family, dtype="float64"):
    """tokens, targets and parameters: half of the second sequence is masked, so ranks have other numbers of targets."""
    tokens, _, parameters = model_example(CONFIGS[family], dtype, SEQUENCES, LENGTH)
    mask = np.ones_like(tokens, bool)
    mask[1, 5:15] = False
    return tokens, next_tokens(tokens, mask), parameters


def on_ranks(comm, xp, config, layout, tokens, targets, parameters, kind="ring", dealt="zigzag", ulysses=None,
             sequence_parallel=False):
    """{"loss", gradients by name}: of a rank's tp shard, summed over dp and cp."""
    mesh = Mesh(comm, layout)
    tp, cp, dp_cp = mesh.tp, mesh.cp, mesh.dp_cp
    everybody = all_positions(LENGTH, cp.size, dealt)
    [sequences] = data.share(SEQUENCES, mesh.dp.rank, mesh.dp.size)
    mine = [device_array(xp, shard(x[sequences.start:sequences.stop], everybody, cp.rank)) for x in (tokens, targets)]
    place = replace(whole_place(config, SEQUENCES, LENGTH), sequences=sequences)
    place = on_rank(place, cp, core(cp, kind, dealt, ulysses, block=5), dealt)
    if tp.size > 1:
        sharing = heads.sharing(tp, config)
        own = on_device(xp, shards.shard(parameters, config, tp.rank, tp.size))
        total, _, saved = transformer.loss(*mine, own, config, tp, place, smoothing=0.1,
                                           sequence_parallel=sequence_parallel)
    else:
        total, _, saved = single.loss(*mine, on_device(xp, parameters), config, place, smoothing=0.1)
    count = data.valid_tokens(mine[1:], dp_cp)
    if tp.size > 1:
        gradients = shards.finish(transformer.loss_backward(1 / count, saved), tp, sharing, sequence_parallel)
    else:
        gradients = single.loss_backward(1 / count, saved)
    summed = {name: all_reduce(g, dp_cp) for name, g in gradients.items()}
    return on_host({"loss": all_reduce(total, dp_cp) / count} | {f"d{name}": g for name, g in summed.items()})


def check(xp, family, layout, recompute="none", ledger=None, **how):
    config = replace(CONFIGS[family], recompute=recompute)
    tokens, targets, parameters = example(family)
    arguments = xp, config, layout, tokens, targets, parameters
    results = run(lambda comm: on_ranks(comm, *arguments, **how), layout.world, ledger=ledger)
    expected = loss_on_one_device(config, tokens, targets, parameters)
    for first in range(0, layout.world, layout.tp):                  # tp changes fastest: shards of one copy
        assert_same(joined(results[first:first + layout.tp], config), expected)
    return config


@both_families
@pytest.mark.parametrize("P", [2, 3, 4])
@pytest.mark.parametrize("kind", ["ring", "gather"])
@pytest.mark.parametrize("dealt", LAYOUTS)
def test_under_cp_alone(family, P, kind, dealt):
    check(np, family, Layout(cp=P), kind=kind, dealt=dealt)


@both_families
@pytest.mark.parametrize(("kind", "P", "ulysses"), [("ulysses", 2, None), ("ulysses", 4, None), ("hybrid", 4, 2)])
def test_under_ulysses_and_a_hybrid(family, kind, P, ulysses):
    check(np, family, Layout(cp=P), kind=kind, ulysses=ulysses)


@both_families
@pytest.mark.parametrize("sequence_parallel", [False, True], ids=["tp", "tp+sp"])
@pytest.mark.parametrize(("kind", "cp", "tp"), [("ring", 2, 2), ("ring", 4, 2), ("ring", 2, 4), ("ring", 3, 2),
                                                ("gather", 2, 2), ("ulysses", 2, 2)])
def test_under_cp_and_tp(family, kind, cp, tp, sequence_parallel):
    """cp within tp's heads: a rank's attention is of its positions' queries, and of its heads."""
    check(np, family, Layout(cp=cp, tp=tp), kind=kind, sequence_parallel=sequence_parallel)


@both_families
@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize(("kind", "tp", "sequence_parallel"), [("ring", 1, False), ("ring", 2, True),
                                                               ("ulysses", 1, False), ("gather", 1, False)])
def test_recomputation_does_the_same_again(family, recompute, kind, tp, sequence_parallel):
    check(np, family, Layout(cp=2, tp=tp), recompute, kind=kind, sequence_parallel=sequence_parallel)


@both_families
@pytest.mark.parametrize("kind", ["ring", "ulysses"])
def test_on_both_array_libraries(xp, family, kind):
    check(xp, family, Layout(cp=2, tp=2), kind=kind, sequence_parallel=True)


@pytest.mark.parametrize("P", [2, 4])
@pytest.mark.parametrize("family", ["gpt2"])
def test_in_every_world(world, P, family):
    check(np, family, Layout(cp=2, tp=P // 2), kind="ring", sequence_parallel=P > 2)


@pytest.mark.parametrize(("recompute", "forwards"), [("none", 1), ("selective", 2), ("full", 2)])
@both_families
def test_the_ring_of_every_layer_sends_what_the_formula_says(family, recompute, forwards):
    """Recomputation sends keys and values once more."""
    log = Ledger()
    config = check(np, family, Layout(cp=4), recompute, log, kind="ring")
    layer = cost.ring_attention(SEQUENCES, LENGTH, config.kv_heads, config.head, 4, item=8)
    for rank in range(4):
        sent = log.bytes_sent(rank, collective="ring_attention")
        assert sent == config.layers * (forwards * layer["forward"] + layer["backward"])


# -- A16: the loss is divided once, by the targets of all ranks -------------------------------------------------------

@pytest.mark.parametrize("P", [1, 2, 4])
@pytest.mark.parametrize("dealt", ["contiguous", "striped"])
def test_A16_one_valid_token_of_four(xp, P, dealt):
    """NVIDIA/Megatron-LM #673, #906, PR #7513: loss 3.0 for any cp; divided on each rank it is 1.5, or 0.75."""
    logits, targets = np.zeros((1, 4, 2)), np.array([[-1, -1, 0, -1]])
    logits[0, 2, 1] = np.log(np.exp(3) - 1)                                         # log(1 + e^x) = 3
    everybody = all_positions(4, P, dealt)

    def program(comm):
        mine = [device_array(xp, shard(x, everybody, comm.rank)) for x in (logits, targets)]
        total, _, saved = cross_entropy(*mine)
        count = data.valid_tokens(mine[1:], comm)
        return float(to_host(all_reduce(total, comm))) / count, cross_entropy_backward(1 / count, saved)

    losses, gradients = zip(*run(program, P), strict=True)
    assert losses == (pytest.approx(3, rel=1e-15),) * P
    p = 1 - np.exp(-3)
    expected = np.zeros((1, 4, 2))
    expected[0, 2] = -p, p
    np.testing.assert_allclose(to_host(unshard(gradients, everybody)), expected, rtol=1e-14, atol=1e-17)


@both_families
@pytest.mark.parametrize(("dp", "cp"), [(2, 2), (4, 1), (1, 4)])
def test_A16_dp_2_x_cp_2_equals_dp_4_equals_one_process(family, dp, cp):
    """Every rank has another number of targets: see `example`."""
    check(np, family, Layout(dp=dp, cp=cp))


def test_A16_of_ranks_that_have_different_numbers_of_targets():
    _, targets, _ = example("gpt2")
    everybody = all_positions(LENGTH, 2)
    counts = {int((shard(targets[rows], everybody, rank) >= 0).sum()) for rows in (slice(0, 2), slice(2, 4))
              for rank in range(2)}
    assert len(counts) == 4
