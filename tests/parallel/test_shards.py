"""What a rank holds of a transformer: cut and joined again nothing is lost, in whatever numbers of ranks."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from tp_models import GPT2, LLAMA, model_example, on_device, on_host, with_kv

from refimpl import Ledger, run
from refimpl.arrays import allocation
from refimpl.model.config import of_block
from refimpl.parallel import heads, shards

CONFIGS = {"gpt2": GPT2, "gpt2 grouped": with_kv(GPT2, 6), "llama": LLAMA, "llama grouped": with_kv(LLAMA, 2)}
by_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def cut(whole, config, P):
    return [shards.shard(whole, config, rank, P) for rank in range(P)]


@by_config
@pytest.mark.parametrize("way", [(1,), (2,), (4,), (2, 4, 1), (4, 2, 1)])
def test_A14_from_one_number_of_ranks_to_another_and_back_is_the_identity(xp, config, way):
    """tp1 -> tp2 -> tp4 -> tp1, with a vocabulary and hidden features that do not divide; copies, not views."""
    if config.kv_heads == 6 and 4 in way:
        config = replace(config, kv_heads=4)
    _, _, parameters = model_example(config)
    whole = on_device(xp, parameters)
    for P in (1, *way):
        pieces = cut(whole, config, P)
        assert all(list(piece) == list(parameters) for piece in pieces)
        assert not any(allocation(piece[name])[0] == allocation(whole[name])[0] for piece in pieces for name in piece)
        whole = shards.unshard(pieces, config)
    assert list(whole) == list(parameters)
    for name, p in on_host(whole).items():
        assert_array_equal(p, parameters[name])
        assert p.dtype == parameters[name].dtype and not np.shares_memory(p, parameters[name])


@by_config
@pytest.mark.parametrize("P", [1, 2, 3, 4])
def test_every_number_is_on_as_many_ranks_as_need_it(config, P):
    """Numbered: what is cut is on one rank, shared heads on those that share, the rest on all."""
    if config.kv_heads % P and P % config.kv_heads:
        config = replace(config, kv_heads=12)
    share = heads.sharers(config, P)
    _, _, parameters = model_example(config)
    start = itertools.accumulate((p.size for p in parameters.values()), initial=1)
    numbered = {name: np.arange(first, first + p.size).reshape(p.shape)
                for (name, p), first in zip(parameters.items(), start)}
    pieces = cut(numbered, config, P)
    for name, p in numbered.items():
        seen, times = np.unique(np.concatenate([piece[name].ravel() for piece in pieces]), return_counts=True)
        seen, times = seen[seen > 0], times[seen > 0]                           # 0: padding
        assert_array_equal(seen, p.ravel())
        expected = np.full(p.shape, P)
        if name.endswith(("tokens", "wo", "w1", "b1", "w2")) and "norm" not in name:
            expected[...] = 1
        if name.endswith("qkv"):
            expected[..., :-2, :], expected[..., -2:, :] = 1, share
        assert_array_equal(times, expected.ravel(), err_msg=name)


@by_config
@pytest.mark.parametrize("P", [1, 2, 4])
def test_A14_gates_stay_with_their_ups_and_shapes_are_as_stated(config, P):
    config = replace(config, kv_heads=4) if config.kv_heads == 6 else config
    _, _, parameters = model_example(config)
    for rank, piece in enumerate(cut(parameters, config, P)):
        mine = of_block(piece, 1)
        assert {name: p.shape for name, p in mine.items()} == shards.block_shapes(config, rank, P)
        shards.check_block(mine, config, rank, P)
        features = slice(10 * rank // P, 10 * (rank + 1) // P)
        assert_array_equal(mine["mlp.w1"], parameters["blocks.1.mlp.w1"][..., features])


def test_A14_the_numbers_of_the_report():
    """NVIDIA-NeMo/Automodel PR #1324: ffn 4, fused g0 .. g3 u0 .. u3; rank 0 of 2 owns g0 g1 u0 u1."""
    config = replace(LLAMA, ffn=4)
    _, _, parameters = model_example(config)
    parameters["blocks.0.mlp.w1"][...] = np.arange(8.0).reshape(2, 4)
    mine = [shards.shard(parameters, config, rank, 2)["blocks.0.mlp.w1"][3].ravel() for rank in range(2)]
    assert_array_equal(mine, [[0, 1, 4, 5], [2, 3, 6, 7]])


def test_a_block_that_is_not_cut_or_lacks_something_is_named():
    _, _, parameters = model_example(GPT2)
    mine = of_block(shards.shard(parameters, GPT2, 0, 2), 0)
    with pytest.raises(ValueError, match=r"wqkv is \(24, 12, 3, 2\), but rank 0 of 2 holds \(24, 6, 3, 2\): shards"):
        shards.check_block(of_block(parameters, 0), GPT2, 0, 2)
    with pytest.raises(ValueError, match=r"mlp.b2 is missing, but rank 0 of 2 holds \(24,\)"):
        shards.check_block({name: p for name, p in mine.items() if name != "mlp.b2"}, GPT2, 0, 2)
    with pytest.raises(ValueError, match="rank=2 of size=2"):
        shards.shard(parameters, GPT2, 2, 2)


def test_a_vocabulary_may_be_padded_to_more():
    _, _, parameters = model_example(GPT2)
    pieces = [shards.shard(parameters, GPT2, rank, 2, multiple=8) for rank in range(2)]
    assert [piece["embedding.tokens"].shape[0] for piece in pieces] == [8, 8]
    assert_array_equal(shards.unshard(pieces, GPT2)["embedding.tokens"], parameters["embedding.tokens"])


def test_finish_sends_nothing_where_nothing_is_an_addend():
    def program(comm):
        mine = shards.shard(parameters, GPT2, comm.rank, comm.size)
        return shards.finish(mine, comm, heads.sharing(comm, GPT2)) is mine

    _, _, parameters = model_example(GPT2)
    log = Ledger()
    assert run(program, 4, ledger=log) == [True] * 4 and log.messages() == 0
