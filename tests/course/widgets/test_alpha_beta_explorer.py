"""The explorer: its curves are the cost formulas, and those the virtual clock's; crossings are where curves meet."""

import math
import re

import numpy as np
import pytest

from refimpl import Link, Network, run
from refimpl.collectives import all_reduce
from refimpl.course.widgets import AlphaBetaExplorer
from refimpl.course.widgets.alpha_beta_explorer import (
    ALGORITHMS,
    RANKS,
    bytes_words,
    crossing,
    draw_alpha_beta,
    seconds,
    seconds_words,
)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("P", [2, 3, 6, 8])
@pytest.mark.parametrize("size", [24, 24_000])
def test_the_curves_are_the_times_of_the_algorithms_as_they_run(name, P, size):
    network = Network(Link(10e-6, 1 / 50e9))

    def program(comm):
        all_reduce(np.ones(size, "uint8"), comm, algorithm=name.lower())
        return comm.clock

    assert seconds(name, size, P, 10e-6, 1 / 50e9) == pytest.approx(max(run(program, P, network=network)), rel=1e-12)


@pytest.mark.parametrize("P", [4, 8, 64, 1024])
def test_the_ring_overtakes_doubling_where_algebra_says(P):
    """2(P-1)(a + t/P) = lg P (a + t), solved for t by hand."""
    alpha, beta, rounds = 10e-6, 1 / 50e9, math.log2(P)
    t = alpha * (2 * (P - 1) - rounds) / (rounds - 2 * (P - 1) / P)
    assert crossing("ring", "doubling", P, alpha, beta) == pytest.approx(t / beta, rel=1e-5)


@pytest.mark.parametrize("P", RANKS)
def test_beyond_a_crossing_the_ring_is_faster_and_before_it_is_not(P):
    for other in ("doubling", "tree", "Rabenseifner"):
        size = crossing("ring", other, P, 10e-6, 1 / 50e9)
        if size:
            times = [(seconds("ring", s, P, 10e-6, 1 / 50e9), seconds(other, s, P, 10e-6, 1 / 50e9))
                     for s in (size * 0.99, size * 1.01)]
            assert times[0][0] > times[0][1] and times[1][0] < times[1][1]
        else:
            faster = [seconds("ring", s, P, 10e-6, 1 / 50e9) < seconds(other, s, P, 10e-6, 1 / 50e9) * (1 - 1e-12)
                      for s in (1e2, 1e5, 1e8, 1e11)]
            assert faster == [size == 0] * 4


@pytest.mark.parametrize("P", [4, 16, 256])
def test_where_P_is_a_power_of_two_the_ring_never_beats_rabenseifner(P):
    assert crossing("ring", "Rabenseifner", P, 10e-6, 1 / 50e9) is None


def test_the_picture_names_the_crossings_the_fastest_and_the_times():
    shown = draw_alpha_beta(64, 10.0, 50.0, 1e6)
    for name in ("doubling", "tree"):
        named = f"ring = {name} at {bytes_words(crossing('ring', name, 64, 10e-6, 1 / 50e9))}"
        assert named in shown.svg
    for words in ("Rabenseifner is fastest, 159 µs", "ring 1.3 ms", "doubling 180 µs", "Rabenseifner never",
                  "doubling from 14.9 MB on"):
        assert words in shown.words
    assert shown.svg.count("<polyline") > 8 and "NaN" not in shown.svg


@pytest.mark.parametrize("P, alpha_us, bandwidth, size", [(2, 0.1, 0.1, 1e2), (1024, 1e3, 1e3, 1e11), (7, 1, 1e3, 1e2)])
def test_the_ends_of_the_sliders_have_pictures(P, alpha_us, bandwidth, size):
    shown = draw_alpha_beta(P, alpha_us, bandwidth, size)
    at = [float(n) for n in re.findall(r"points=\"([\d.]+),", shown.svg)]
    assert all(0 <= x <= 930 for x in at)


@pytest.mark.parametrize("arguments, says", [
    ((1,), "P=1: an all-reduce needs 2 ranks"), ((4, 0.0), "alpha 0.0 µs.*above 0"), ((4, 1.0, -1.0), "-1.0 GB/s"),
    ((4, 1.0, 1.0, 0), "0 bytes")])
def test_what_has_no_time_is_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        draw_alpha_beta(*arguments)


def test_the_widget_moves():
    explorer = AlphaBetaExplorer()
    assert explorer.shown == draw_alpha_beta()
    explorer.controls["P"].value = 1024
    explorer.controls["size"].value = 1e9
    assert explorer.shown == draw_alpha_beta(1024, 10.0, 50.0, 1e9)
    explorer.set(alpha_us=1.0, bandwidth=200.0)
    assert explorer.shown == draw_alpha_beta(1024, 1.0, 200.0, 1e9)


@pytest.mark.parametrize("words, number", [("100 B", 100), ("1.5 kB", 1500), ("1 MB", 999_999), ("14.9 GB", 14.9e9),
                                           ("2,000 TB", 2e15)])
def test_bytes_in_words(words, number):
    assert bytes_words(number) == words


@pytest.mark.parametrize("words, number", [("10 ns", 1e-8), ("159 µs", 158.9e-6), ("1.3 ms", 1.299e-3), ("20 s", 20),
                                           ("1,230 s", 1234.5)])
def test_seconds_in_words(words, number):
    assert seconds_words(number) == words
