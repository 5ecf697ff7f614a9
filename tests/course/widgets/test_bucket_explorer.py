"""The explorer of buckets: its lanes and curves are those of buckets as they run, and its best one is the best."""

import re

import numpy as np
import pytest

from refimpl import Link, Network, run
from refimpl.cost import overlap
from refimpl.course.widgets import BucketExplorer
from refimpl.course.widgets.alpha_beta_explorer import seconds_words
from refimpl.course.widgets.bucket_explorer import BUCKETS, RANKS, WIDE, best_whole, draw_buckets, when
from refimpl.parallel.data import GradientBuckets, plan

ALPHA, BETA = 2e-5, 4e-9


def counted(T, n, K, P):
    """Seconds of a step with n float32 gradients in K equal buckets, on real ranks with a virtual clock."""
    like = {str(k): np.zeros(n // K, np.float32) for k in range(K)}

    def program(comm):
        step = GradientBuckets(like, plan(dict.fromkeys(like, n // K), n // K), comm)
        for name in reversed(like):
            comm.elapse(T / K)
            step.ready(name, like[name])
        step.finish()
        return comm.clock

    return max(run(program, P, network=Network(Link(ALPHA, BETA))))


@pytest.mark.parametrize("P", [2, 3, 4, 8])
@pytest.mark.parametrize("K", [1, 2, 5, 12])
@pytest.mark.parametrize("T", [1e-4, 1e-3, 1e-2])
def test_the_lanes_are_those_of_buckets_as_they_run(T, K, P):
    n = 12 * 5 * 24 * 10
    lanes = when(T, 4 * n, K, P, ALPHA, BETA)
    assert max(lanes[-1][2], T) == pytest.approx(counted(T, n, K, P), rel=1e-12)
    ready = [(k + 1) * T / K for k in range(K)]
    known = overlap.timeline(ready, [n // K] * K, P, ALPHA, BETA)
    for (_, begin, end), (first, last) in zip(lanes, known, strict=True):
        assert (begin, end) == pytest.approx((first, last), rel=1e-12)


@pytest.mark.parametrize("T, G, P, alpha, beta", [
    (20e-3, 200e6, 8, 20e-6, 1 / 25e9), (20e-3, 200e6, 8, 20e-6, 1 / 10e9), (20e-3, 200e6, 256, 20e-6, 1 / 25e9),
    (1e-3, 1e9, 4, 1e-6, 1e-11), (0.1, 1e8, 2, 1e-3, 1e-10)])
def test_the_best_number_is_the_best_of_all_whole_numbers(T, G, P, alpha, beta):
    time = lambda K: overlap.bucketed_step(T, G, K, P, alpha, beta)
    assert time(best_whole(T, G, P, alpha, beta)) == min(time(K) for K in range(1, 2000))


def test_the_picture_says_what_is_best_what_is_hidden_and_who_decides():
    shown = draw_buckets()
    assert shown.title == "4 buckets of 50 MB: backward and all-reduces take 23.8 ms"
    step, hidden = (f(20e-3, 200e6, 4, 8, 20e-6, 1 / 25e9) for f in (overlap.bucketed_step, overlap.hidden))
    for words in (f"Hidden: {seconds_words(hidden)} of {seconds_words(hidden + step - 20e-3)}", "Computing decides",
                  "Best: 21 buckets of 9.52 MB", "one bucket takes 34.3 ms"):
        assert words in shown.words
    assert "The network decides" in draw_buckets(K=96).words
    assert "Nothing overlaps. Hidden: 0 of" in draw_buckets(K=1).words
    assert "best: 21 of 9.52 MB" in shown.svg and "yours" in shown.svg and "best, and yours: 8" in draw_buckets(
        K=8, bandwidth=10.0).svg


@pytest.mark.parametrize("K", [2, 4, 24])
def test_what_is_waited_for_is_drawn_as_long_as_it_takes(K):
    """The purple boxes together are the part of the step that comes after backward, but for the gaps between them."""
    lanes = draw_buckets(K=K).svg.partition("bytes of a bucket")[0].partition("an all-reduce, hidden")[0]
    boxes = [float(width) for width in re.findall(r'<rect class="purple" x="[\d.]+" y="100" width="([\d.]+)"', lanes)]
    step = overlap.bucketed_step(20e-3, 200e6, K, 8, 20e-6, 1 / 25e9)
    drawn = sum(width for width in boxes if width > 0)
    assert abs(drawn - WIDE * (step - 20e-3) / step) <= len(boxes) + 1


def test_a_best_size_left_of_the_axis_is_said_to_be_there():
    assert "best: 3521 of 56.8 kB, smaller than here" in draw_buckets(backward_ms=1000.0).svg
    assert "smaller than here" not in draw_buckets().svg


@pytest.mark.parametrize("changes", [
    {"P": RANKS[0], "K": BUCKETS[-1]}, {"P": RANKS[-1], "K": BUCKETS[-1], "alpha_us": 1000.0}, {"backward_ms": 0.1},
    {"backward_ms": 1000.0, "megabytes": 1.0}, {"megabytes": 1e4, "bandwidth": 0.1},
    {"alpha_us": 0.1, "bandwidth": 1e3}])
def test_the_ends_of_the_sliders_have_pictures_without_lines_outside(changes):
    shown = draw_buckets(**changes)
    assert "NaN" not in shown.svg and "inf" not in shown.svg.replace("infl", "")
    points = [float(n) for line in re.findall(r'points="([^"]+)"', shown.svg) for n in re.findall(r"([\d.-]+),", line)]
    assert all(0 <= x <= 930 for x in points)
    assert not re.findall(r'width="-', shown.svg)


@pytest.mark.parametrize("arguments, says", [
    ((1,), "1 ranks, 4 buckets: 2 ranks or more"), ((4, 0), "in 1 bucket or more"), ((4, 2, 0.0), "0.0 ms.*above 0"),
    ((4, 2, 1.0, 1.0, 1.0, -1.0), "-1.0 GB/s: all must be above 0")])
def test_what_has_no_picture_is_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        draw_buckets(*arguments)


def test_the_widget_moves():
    explorer = BucketExplorer()
    assert explorer.shown == explorer.still() == draw_buckets()
    explorer.controls["K"].value = 24
    assert explorer.shown == draw_buckets(K=24)
    explorer.set(P=64, bandwidth=10.0, megabytes=500.0)
    assert explorer.shown == draw_buckets(64, 24, megabytes=500.0, bandwidth=10.0)
