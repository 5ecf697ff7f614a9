"""The comparison of paradigms: its numbers obey the laws that the lessons prove, its words name lessons that exist."""

import pytest

from refimpl.course import paradigms, tracks
from refimpl.course.paradigms import PARADIGMS, compare, numbers

ROWS = {paradigm.key: row for paradigm, row in compare()}


def test_what_each_sends_follows_the_formula_that_is_shown():
    model = paradigms.models.find(paradigms.DENSE)
    b, s, h, L, t = paradigms.BATCH, paradigms.SEQUENCE, model.hidden, model.layers, paradigms.GPUS
    replicas = 2 * (t - 1) / t * model.parameters * 2                    # bfloat16 gradients
    assert ROWS["dp"].sent == pytest.approx(replicas, rel=1e-3)
    layer = b * s * h * (t - 1) / t * 2
    assert ROWS["tp"].sent == pytest.approx(8 * layer * L, rel=0.02)     # and the embedding's, and the loss's
    assert ROWS["sp"].sent == pytest.approx(10 * layer * L, rel=0.02)
    assert ROWS["zero"].sent == pytest.approx(3 * (t - 1) / t * model.parameters * 2 * (b // t), rel=1e-2)
    assert ROWS["pp"].sent == pytest.approx(2 * b * s * h * 2, rel=1e-6)       # rank 1: a message each way
    assert ROWS["cp"].sent > replicas
    e, mixture = paradigms.GPUS, paradigms.models.find(paradigms.MIXTURE)
    rows = 4 * 2 * (b // e) * s * mixture.hidden * (e - 1) / e * 2 * mixture.layers        # 4 ways, k = 2
    assert ROWS["ep"].sent > rows


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
