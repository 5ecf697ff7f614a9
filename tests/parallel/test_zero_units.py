"""Flat units: every element once, padding at the end and in no piece, the numbers of case A23."""

from math import prod

import numpy as np
import pytest
from backends import device_array
from numpy.testing import assert_array_equal

from refimpl.arrays import to_host
from refimpl.model.config import Config, shapes
from refimpl.parallel.data import plan
from refimpl.parallel.units import Unit, layers

SHAPES = [{"w": (2, 3), "b": (3,), "v": (4,)}, {"w": (13,)}, {"scale": ()}, {"w": (3, 0), "b": (1,)}, {"w": (2, 3)}]


def held(unit, ranks):
    return [unit.held(rank) for rank in range(ranks)]


def test_A23_padding_may_span_several_ranks():
    """deepspeedai/DeepSpeed PR #6974."""
    unit = Unit({"w": (266240,)}, 768, alignment=1536)
    assert (unit.padded - unit.size, unit.shard) == (1024, 348)
    assert held(unit, 768)[764:] == [348, 20, 0, 0] and set(held(unit, 768)[:764]) == {348}
    assert unit.pieces(766) == unit.pieces(767) == []


def test_A23_an_alignment_larger_than_the_ranks():
    unit = Unit({"w": (57,)}, 2, alignment=4)
    assert (unit.padded, held(unit, 2)) == (60, [30, 27])


def test_A23_fewer_elements_in_the_last_shards():
    assert held(Unit({"w": (13,)}, 8), 8) == [2, 2, 2, 2, 2, 2, 1, 0]


@pytest.mark.parametrize("times", [1, 2, 5])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 20])
@pytest.mark.parametrize("parameters", SHAPES)
def test_A23_gathered_shards_give_the_parameters_back_and_no_piece_has_padding(xp, parameters, ranks, times):
    """deepspeedai/DeepSpeed PR #1422, #1380: exact, whatever stands in the padding."""
    unit = Unit(parameters, ranks, ranks * times)
    assert unit.padded == ranks * unit.shard and 0 <= unit.padded - unit.size < ranks * times
    whole = {name: 100.0 * ord(name[0]) + np.arange(prod(shape)).reshape(shape) for name, shape in parameters.items()}
    flat = device_array(xp, np.full(unit.padded, np.nan))
    for name, view in unit.views(flat).items():
        view[...] = device_array(xp, whole[name])
    shards = [flat[unit.own(rank)].copy() for rank in range(ranks)]
    for name, view in unit.views(xp.concatenate(shards)).items():
        assert_array_equal(to_host(view), whole[name])
    found = {name: [] for name in parameters}
    for rank, shard in enumerate(shards):
        pieces = unit.pieces(rank)
        assert sum(piece.stop - piece.start for piece in pieces) == unit.held(rank)
        for name, start, stop, inside in pieces:
            assert_array_equal(to_host(shard[inside]), whole[name].reshape(-1)[start:stop])
            found[name] += range(start, stop)
    assert found == {name: list(range(prod(shape))) for name, shape in parameters.items()}


def test_an_alignment_that_the_ranks_do_not_divide_is_named_with_the_nearest():
    for alignment, nearest in ((10, 9), (11, 12), (1, 3), (0, 3), (-4, 3)):
        with pytest.raises(ValueError, match=f"alignment={alignment} is no multiple of the 3 .*nearest {nearest}"):
            Unit({"w": (5,)}, 3, alignment)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_layers_and_buckets_have_every_parameter_once_and_in_order(family):
    names = shapes(Config(family, vocabulary=5, hidden=4, layers=11, heads=2))
    units = layers(names)
    assert list(units) == ["embedding", *(f"blocks.{layer}" for layer in range(11)), "head"]
    assert [name for unit in units.values() for name in unit] == list(names)
    assert ("head.tokens" in units["head"]) == (family == "llama")
    buckets = plan({name: prod(shape) for name, shape in names.items()}, 50)[::-1]
    assert sorted(name for bucket in buckets for name in bucket) == sorted(names)
