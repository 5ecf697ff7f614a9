"""The memory explorer: its bytes are those that arrays of these shapes have, and it says O(s/P)."""

import numpy as np
import pytest

from refimpl import run
from refimpl.course.widgets import ContextMemory
from refimpl.course.widgets.context_memory import FEATURES, HEADS, RANKS, draw_memory, kept, passing, scores
from refimpl.parallel.context_layout import all_positions
from refimpl.parallel.ring_attention import pack_kv, ring_attention


@pytest.mark.parametrize("P", [1, 2, 4])
@pytest.mark.parametrize("kv_heads", [1, 8])
def test_what_is_kept_is_what_the_ring_keeps(P, kv_heads):
    """Of arrays in float16 as the ring saves them; a number a row more is in float32."""
    s, everybody = 16, all_positions(16, P)

    def program(comm):
        c = s // P
        q = np.ones((1, c, kv_heads, HEADS // kv_heads, FEATURES), np.float16)
        k = np.ones((1, c, kv_heads, FEATURES), np.float16)
        _, saved = ring_attention(q, k, k.copy(), comm, everybody)
        block = pack_kv(k, k).nbytes
        return sum(x.nbytes for x in (saved.q, saved.k, saved.v, saved.out, saved.lse)), block

    for nbytes, block in run(program, P):
        assert nbytes == kept(s, kv_heads, P)
        assert passing(s, kv_heads, P) == (2 * block if P > 1 else 0)
        assert passing(s, kv_heads, P, "gather") == (P * block if P > 1 else 0)


@pytest.mark.parametrize("P", RANKS)
def test_it_grows_with_s_over_p_and_the_scores_with_s_squared(P):
    s = 2**15
    assert kept(2 * s, 8, P) == 2 * kept(s, 8, P) == kept(4 * s, 8, 2 * P)
    assert scores(2 * s) == 4 * scores(s) == 8 * HEADS * s * s


def test_the_words_say_what_is_not_constant():
    shown = draw_memory(17, 8, 8)
    assert shown.title == "128 Ki positions on 8 ranks: 338 MB a layer on each"
    assert "Twice the positions take 675 MB on as many ranks, and 338 MB on 16: O(s/P), not O(1)." in shown.words
    assert kept(2**17, 8, 8) == 337_641_472 and "the matrix of scores 1.1 TB" in shown.words


@pytest.mark.parametrize("power, P, kv_heads", [(9, 8, 8), (21, 8, 8), (17, 3, 8), (17, 8, 5)])
def test_what_is_not_in_the_picture_is_refused(power, P, kv_heads):
    with pytest.raises(ValueError, match="expected 2"):
        draw_memory(power, P, kv_heads)


def test_the_widget_draws_every_value_that_its_controls_have():
    explorer = ContextMemory()
    for name, values in (("power", range(10, 21)), ("P", RANKS), ("kv_heads", (1, 2, 4, 8, 16, 32))):
        for value in values:
            explorer.controls[name].value = value
            assert explorer.shown == draw_memory(**explorer.values) and "<svg" in explorer.picture.value
    assert "context-memory" in explorer._dom_classes
