"""The split explorer: its matrices are those of one device, its counts are formulas, its picture shows them all."""

import time
from xml.etree import ElementTree

import numpy as np
import pytest

from refimpl.cost import traffic
from refimpl.course.widgets import SplitExplorer
from refimpl.course.widgets import split_run as ran
from refimpl.course.widgets.split import MOST, draw_split
from refimpl.parallel import tensor

ways = pytest.mark.parametrize("first, second", [(one, other) for one in ran.CUTS for other in ran.CUTS])
ranks = pytest.mark.parametrize("P", range(1, MOST + 1))
T, I, H, O = ran.TOKENS, ran.INPUTS, ran.HIDDEN, ran.OUTPUTS


def one_device():
    """Every matrix of both passes, by name, computed here without ranks."""
    x, w1, w2, dy = ran.matrices()
    a = x @ w1
    h = np.maximum(a, 0)
    dh = dy @ w2.T
    da = dh * (a > 0)
    return {"x": x, "h": h, "a": a, "y": h @ w2, "dy": dy, "dh": dh, "da": da, "dx": da @ w1.T}


@ways
@ranks
def test_what_is_whole_is_what_one_device_has_and_the_parts_make_it(first, second, P):
    right = one_device()
    for notes in ran.run_split(first, second, P).passes.values():
        for column in zip(*notes, strict=True):
            if isinstance(column[0], ran.Message) or column[0].name.startswith("w"):
                continue
            name, kinds = column[0].name, column[0].kinds
            whole = right["h" if name == "relu(a_r)" else name.removesuffix("_r")]
            parts = [matrix.numbers for matrix in column]
            if not name.endswith(("_r", "_r)")):
                assert all(np.array_equal(part, whole) for part in parts), name
            elif "backward" in kinds:
                assert np.array_equal(sum(parts), whole), name
            else:
                assert np.array_equal(np.concatenate(parts, axis=1), whole), name


@ways
def test_the_matrices_have_something_of_every_sign_and_relu_something_to_do(first, second):
    right = one_device()
    assert (right["a"] < 0).any() and (right["h"] > 0).any() and (right["dx"] != 0).any() and (right["y"] != 0).any()


@ranks
def test_the_numbers_sent_are_those_of_the_formulas(P):
    reduce = lambda n, rank: traffic.ring_all_reduce(n, P, rank)
    gather = lambda features, rank: T * traffic.ring_all_gather(features, P, rank)
    for rank in range(P):
        expected = {
            ("columns", "rows"): (reduce(T * O, rank), reduce(T * I, rank)),
            ("columns", "columns"): (gather(H, rank) + gather(O, rank), reduce(T * H, rank) + reduce(T * I, rank)),
            ("rows", "rows"): (reduce(T * H, rank) + reduce(T * O, rank), gather(H, rank) + gather(I, rank)),
            ("rows", "columns"): (reduce(T * H, rank) + gather(O, rank), reduce(T * H, rank) + gather(I, rank)),
        }
        for (first, second), numbers in expected.items():
            sent = ran.run_split(first, second, P).sent
            assert (sent["forward"][rank], sent["backward"][rank]) == numbers


def test_columns_then_rows_is_the_mlp_of_the_library():
    sent = ran.run_split("columns", "rows", 3).sent
    assert {direction: ranks[0] for direction, ranks in sent.items()} == traffic.tensor_parallel_mlp(T, I, O, 3, 0)


def test_a_layer_that_forgets_its_sum_is_drawn_wrong(monkeypatch):
    """The pictures are of the real layers: without the all-reduce the ranks' y differ, and nothing is sent."""
    ran.run_split.cache_clear()
    monkeypatch.setattr(tensor, "summed", lambda x, comm: x)
    try:
        split = ran.run_split("columns", "rows", 2)
        ys = [notes[-1].numbers for notes in split.passes["forward"]]
        assert not np.array_equal(*ys) and split.sent["forward"] == [0, 0]
    finally:
        ran.run_split.cache_clear()


@ways
@ranks
@pytest.mark.parametrize("direction", ran.PASSES)
def test_the_picture_shows_every_number_and_every_message(first, second, P, direction):
    notes = ran.run_split(first, second, P).passes[direction]
    shown = draw_split(first, second, direction, P)
    words = [element.text for element in ElementTree.fromstring(shown.svg).iter() if element.tag.endswith("}text")]
    numbers = sum(step.numbers.size for found in notes for step in found if isinstance(step, ran.Matrix))
    messages = [step for found in notes for step in found if isinstance(step, ran.Message)]
    assert sum(word.lstrip("-").isdigit() for word in words) == numbers + len(messages)
    assert words.count("sends") == len(messages)
    for step in messages[:2]:
        assert step.words in shown.words and f"of {step.words.split(' of ')[1]}" in words


def test_the_words_compare_the_four_ways():
    said = draw_split("columns", "rows", "backward", 2).words
    assert "Backward on 2 ranks: all-reduce of dx, in which rank 0 sends 12" in said
    assert "24 with w1 by columns and w2 by rows" in said and "48 with w1 by rows and w2 by columns" in said


@pytest.mark.parametrize("arguments, says", [
    (("diagonals", "rows", "forward", 2), "w1 by 'diagonals': a matrix is cut by columns or by rows"),
    (("columns", "rows", "sideways", 2), "'sideways' on 2 ranks"),
    (("columns", "rows", "forward", 5), "on 1 to 4 ranks"),
])
def test_what_cannot_be_is_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        draw_split(*arguments)


def test_the_widget_draws_anew_and_quickly():
    explorer = SplitExplorer()
    for first in ran.CUTS:
        for P in range(1, MOST + 1):
            explorer.set(first=first, second="columns", direction="backward", P=P)
            assert explorer.shown == draw_split(first, "columns", "backward", P)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        draw_split("rows", "columns", "forward", MOST)
        times.append(time.perf_counter() - began)
    assert min(times) < 20e-3
