"""The comparison of paradigms: its numbers obey the laws that the lessons prove, its words name lessons that exist."""

import re

import pytest

from refimpl.cost import traffic
from refimpl.course import paradigms, tracks
from refimpl.course.paradigms import PARADIGMS, compare, numbers

ROWS = {paradigm.key: row for paradigm, row in compare()}


def test_what_each_sends_follows_the_formula_that_is_shown():
    """To the byte, in bfloat16: with numbers of 8 bytes that ranks agree on, by doubling over 2 or 3 groups of 8."""
    model = paradigms.models.find(paradigms.DENSE)
    b, s, h, L, t = paradigms.BATCH, paradigms.SEQUENCE, model.hidden, model.layers, paradigms.GPUS
    agreed, item = 3 * 8, 2
    of_all = lambda parameters: parameters * (t - 1) // t * item
    replicas = 2 * of_all(model.parameters) + 3 * agreed
    assert ROWS["dp"].sent == replicas
    assert ROWS["zero"].sent == 3 * (b // t) * of_all(model.parameters) + 3 * agreed
    assert ROWS["pp"].sent == 2 * b * s * h * item + 2 * agreed          # rank 1: a message each way
    layer = b * s * h * (t - 1) / t * item
    assert ROWS["tp"].sent == pytest.approx(8 * layer * L, rel=0.02)     # and the embedding's, and the loss's
    assert ROWS["sp"].sent == pytest.approx(10 * layer * L, rel=0.02)
    keys_and_values = 2 * b * s * h * model.kv_heads // model.heads * (t - 1) // t * L
    assert ROWS["cp"].sent == (item + item + 4) * keys_and_values + replicas       # twice, and gradients in float32
    e, mixture = paradigms.GPUS, paradigms.models.find(paradigms.MIXTURE)
    rows = 4 * 2 * b // e * s * mixture.hidden * (e - 1) // e * item * mixture.layers              # 4 ways, k = 2
    experts = mixture.experts * 3 * mixture.hidden * mixture.expert_ffn * mixture.layers           # no two on a rank
    numbers_of_rows = 8 * (e - 1) * mixture.layers * b // e
    assert ROWS["ep"].sent == rows + numbers_of_rows + 2 * of_all(mixture.parameters - experts) + 3 * agreed


def test_words_say_how_often_zero_sends_and_every_formula_has_its_unit():
    """Stage 2 scatters every micro-batch: m + 1 times, as `zero_step` has it."""
    words = {paradigm.key: paradigm for paradigm in PARADIGMS}
    one = traffic.zero_step([64], 8, 0, 1)["gradients"]
    times = [sum(traffic.zero_step([64], 8, 0, stage, microbatches=5).values()) // one for stage in (1, 2, 3)]
    assert times == [2, 5 + 1, 3 * 5]
    assert "twice a step; stage 2: m+1 times, 3: 3 m" in words["zero"].often
    assert words["zero"].formula.startswith("2, m+1 or 3 m times (N-1)/N elements")
    for paradigm in PARADIGMS:
        assert re.search(r" elements a (parameter|layer and micro-batch|micro-batch)$", paradigm.formula), paradigm.key


def test_a_way_that_there_is_not_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="there is no paradigm 'zerro': there are one, dp, zero, .*; nearest 'zero'"):
        numbers("zerro")


def test_states_are_cut_by_what_cuts_them():
    one = ROWS["one"].states
    assert one == 16 * paradigms.models.find(paradigms.DENSE).parameters
    assert ROWS["dp"].states == ROWS["cp"].states == one
    for key in ("zero", "tp", "sp"):
        assert ROWS[key].states == pytest.approx(one / paradigms.GPUS, rel=1e-3)
    assert one / paradigms.GPUS < ROWS["pp"].states < 2 * one / paradigms.GPUS             # the ends have tables
    assert ROWS["one"].sent == ROWS["one"].messages == 0


def test_seconds_are_bytes_by_bandwidth():
    for row in ROWS.values():
        assert (row.inside, row.between) == (row.sent / 450e9, row.sent / 50e9)


def test_words_are_there_and_lessons_exist():
    for paradigm in PARADIGMS:
        assert all(isinstance(field, (str, dict)) and (field or field == {}) for field in paradigm)
        assert paradigm.lesson in tracks.lessons() and numbers(paradigm.key) is numbers(paradigm.key)
    assert len({paradigm.key for paradigm in PARADIGMS}) == len(PARADIGMS) == 7


def test_tracks_are_made_of_lessons_and_their_minutes():
    assert tracks.TRACKS["a weekend before an interview"] == ("01", "05", "08", "04", "13")
    assert tracks.TRACKS["everything"] == tuple(tracks.lessons())
    for name, numbers_of in tracks.TRACKS.items():
        assert len(set(numbers_of)) == len(numbers_of)
        assert tracks.total(name) == sum(time for number in numbers_of for _, time, _ in tracks.lessons()[number])
    assert tracks.minutes("01") == 45 + 80
    with pytest.raises(ValueError, match="there is no lesson '99'"):
        tracks.minutes("99")


def test_a_lesson_that_does_not_say_how_long_it_takes_is_found_out(tmp_path, monkeypatch):
    (tmp_path / "01_some.ipynb").write_text('{"cells": [{"source": ["# Some\\n", "*About as long as it takes.*"]}]}')
    monkeypatch.setattr(tracks, "FOLDER", tmp_path)
    tracks.lessons.cache_clear()
    try:
        with pytest.raises(ValueError, match="01_some.ipynb: its first cell has no title, or does not say"):
            tracks.lessons()
    finally:
        tracks.lessons.cache_clear()
