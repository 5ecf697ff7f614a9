"""The mesh explorer: every GPU is in the picture, and what is said about one is what layout and formulas say."""

import re
import time

import pytest

from refimpl.course.widgets import MeshExplorer
from refimpl.course.widgets import mesh_explorer as drawn
from refimpl.layout import Layout

SIZES = [dict(), dict(tp=8, cp=2, dp=2, pp=2, node_size=8), dict(tp=2, dp=4, pp=1, node_size=4),
         dict(tp=1, cp=1, dp=1, pp=1)]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("axis", drawn.AXES)
def test_every_gpu_is_drawn_with_its_coordinates_and_the_group_is_the_layouts(sizes, axis):
    given = dict(tp=4, cp=1, dp=2, pp=2, node_size=8) | sizes
    layout = Layout(**given)
    shown = drawn.draw_mesh(**given, rank=0, axis=axis)
    for rank in range(layout.world):
        place = layout.coordinates(rank)
        assert f"rank {rank}: " + ", ".join(f"{name} {k}" for name, k in place.items()) in shown.svg
    assert len(re.findall(r">node \d+<", shown.svg)) == -(-layout.world // layout.node_size)
    group = layout.group(drawn.GROUP[axis], 0)
    assert (f"ranks {', '.join(map(str, group))}, " if len(group) > 1 else "alone: nothing is sent") in shown.words


@pytest.mark.parametrize("order", drawn.ORDERS)
def test_the_order_changes_the_links_and_not_the_bytes(order):
    sizes = dict(tp=4, cp=2, dp=2, pp=2)
    first = {axis: nbytes for axis, nbytes, _, _ in drawn.what_it_sends(Layout(**sizes), 0)}
    layout = Layout(**sizes, order=order)
    for axis, nbytes, link, seconds in drawn.what_it_sends(layout, 0):
        crosses = len({layout.node(rank) for rank in layout.group(drawn.GROUP[axis], 0)}) > 1
        assert nbytes == first[axis] > 0 and link == ("between nodes" if crosses else "in the node")
        assert seconds == nbytes / (drawn.BETWEEN if crosses else drawn.INSIDE)


def test_tensor_parallel_bytes_are_those_of_the_papers_formula():
    """8 b s h (t-1)/t elements of 2 bytes for each layer and sequence; the embedding and the loss come on top."""
    layers, s, h, t = 40, drawn.SEQUENCE, drawn.MODEL.hidden, 4
    sequences = drawn.BATCH // 2
    (_, nbytes, _, _), *_ = drawn.what_it_sends(Layout(tp=t, dp=2, pp=2), 5)
    formula = layers * sequences * 8 * s * h * (t - 1) // t * 2
    assert formula <= nbytes < 1.01 * formula


def test_all_ranks_together_hold_everything_once():
    layout = Layout(tp=4, cp=2, dp=2, pp=2)
    held = [tuple(drawn.what_it_holds(layout, rank)) for rank in range(layout.world)]
    assert len(set(held)) == layout.world                      # no two have the same piece of model and batch
    positions = {line for lines in held for line in lines if "positions" in line}
    assert positions == {"of each the positions 0 to 2047 and 6144 to 8191", "of each the positions 2048 to 6143"}
    assert {lines[0] for lines in held} == {"layers 0 to 39 of 80 and the embedding",
                                            "layers 40 to 79 of 80 and the head"}


@pytest.mark.parametrize("given, says", [
    (dict(tp=16, cp=8), "= 512 ranks: the picture has room for 64"),
    (dict(rank=16), "rank 16: expected 0..15"),
    (dict(order="tp-dp"), "order='tp-dp'"),
])
def test_what_cannot_be_is_refused(given, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        drawn.draw_mesh(**given)


def test_the_widget_keeps_its_rank_in_the_world_and_is_quick():
    explorer = MeshExplorer()
    explorer.set(tp=8, cp=2, dp=2, pp=2, rank=63)
    assert explorer.shown == drawn.draw_mesh(8, 2, 2, 2, rank=63)
    explorer.set(tp=1, cp=1, dp=1, pp=1)
    assert explorer.values["rank"] == 0 and explorer.shown.title.startswith("1 GPUs")
    explorer.set(tp=16, cp=8)
    assert "512 ranks" not in explorer.status.value and "128 ranks" in explorer.status.value
    times = []
    for _ in range(5):
        began = time.perf_counter()
        drawn.draw_mesh(8, 2, 2, 2, rank=63)
        times.append(time.perf_counter() - began)
    assert min(times) < 20e-3


def test_replicas_are_all_that_have_the_same_weights():
    shown = drawn.draw_mesh(4, 2, 2, 2, rank=5, axis="dp")
    assert "Its group along dp (with cp: all that have the same weights): ranks 1, 5, 9, 13, on 2 nodes." in shown.words
    assert "Its group along dp: ranks 1, 5, inside one node." in drawn.draw_mesh(4, 1, 2, 2, rank=5, axis="dp").words
