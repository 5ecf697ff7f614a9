"""How the benches time: interleaved rounds, the slowest rank, paired ratios; sizes as one writes them."""

import os
import time

import numpy as np
import pytest

from refimpl import run
from refimpl.bench import timing
from refimpl.bench.timing import measure, median, parse_size, pin, ratio, repeats, size_words, touched_zeros


def test_variants_run_in_turn_round_by_round_and_the_first_round_does_not_count():
    log = []
    variants = {name: lambda name=name: log.append(name) for name in "abc"}
    times = run(lambda comm: measure(comm, variants, rounds=3), 1)[0]
    assert log == list("abc") * 4
    assert list(times) == list("abc") and all(len(seconds) == 3 for seconds in times.values())


def test_a_repeated_variant_is_given_the_time_of_one_call(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(timing, "time", type("Clock", (), {"perf_counter": lambda: next(clock)}))
    log = []
    times = run(lambda comm: measure(comm, {"a": lambda: log.append("a")}, rounds=2, repeat=4), 1)[0]
    assert len(log) == 3 * 4 and times == {"a": [1 / 4, 1 / 4]}                      # this clock moves 1 a look


@pytest.mark.parametrize("P", [2, 3])
def test_the_slowest_ranks_time_counts_on_every_rank(P, world):
    def program(comm):
        return measure(comm, {"wait": lambda: time.sleep(0.02 * comm.rank), "none": lambda: None}, rounds=2)

    results = run(program, P)
    assert all(times == results[0] for times in results)
    assert min(results[0]["wait"]) >= 0.02 * (P - 1)


def test_a_ratio_is_the_median_of_the_rounds_ratios_and_not_the_ratio_of_the_medians():
    slow, fast = [1.0, 100.0, 3.0], [2.0, 50.0, 2.0]
    assert ratio(slow, fast) == 1.5 and median(slow) == 3.0
    with pytest.raises(ValueError):
        ratio(slow, fast[:2])                                                        # rounds belong together


@pytest.mark.parametrize("nbytes, calls", [(0, 200), (1, 200), (4096, 200), (2**16, 16), (2**20, 1), (2**26, 1)])
def test_what_is_short_is_repeated(nbytes, calls):
    assert repeats(nbytes) == calls


def test_zeros_are_in_memory_and_not_only_promised():
    x = touched_zeros(2, 1000)
    assert x.shape == (2, 1000) and x.dtype == np.float32 and not x.any()
    if not os.path.exists("/proc/self/statm"):
        pytest.skip("cannot see here what is in memory")
    resident = lambda: int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    before = resident()
    x = touched_zeros(1, 2**24)                     # more than malloc ever keeps for the next one
    assert resident() - before > 0.9 * x.nbytes


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux only")
def test_a_pinned_process_keeps_to_one_of_its_cores():
    before = os.sched_getaffinity(0)
    try:
        for rank in range(3):
            pin(rank)
            assert os.sched_getaffinity(0) == {sorted(before)[rank % len(before)]}
            os.sched_setaffinity(0, before)
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize("text, nbytes", [
    ("4KiB", 4096), ("64MiB", 2**26), ("1GiB", 2**30), ("100", 100), ("7B", 7), (" 2KiB ", 2048)])
def test_a_size_is_a_number_and_a_unit(text, nbytes):
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", [
    "", "MiB", "0", "0KiB", "-1", "1.5MiB", "4KB", "4kib", "4 KiB", "1iB", "1KiBKiB", "²", "x"])
def test_another_size_is_refused_and_says_how_to_write_one(text):
    with pytest.raises(ValueError, match=f"size {text!r}: write a whole number of bytes with a unit, as in 4KiB"):
        parse_size(text)


def test_ranks_that_do_not_work_are_told_which_do_and_the_nearest():
    for works in (1, 2, 4):
        timing.check_ranks(works, [1, 2, 4], "four layers are cut")
    with pytest.raises(ValueError, match="^ranks=7: four layers are cut; expected 1, 2 or 4; nearest 4$"):
        timing.check_ranks(7, [1, 2, 4], "four layers are cut")


@pytest.mark.parametrize("nbytes, words", [
    (4096, "4 KiB"), (2**20, "1 MiB"), (3 * 2**30, "3 GiB"), (1000, "1000 B"), (1536, "1536 B"), (0, "0 B")])
def test_a_size_in_words(nbytes, words):
    assert size_words(nbytes) == words
