"""What the lessons say of their pictures, and the numbers in their prose that no cell computes."""

import inspect
import json
import re

import numpy as np
import pytest

from refimpl.collectives import chunk_sizes
from refimpl.commands import demo
from refimpl.cost import alpha_beta, context, hardware, memory, models, overlap, traffic
from refimpl.cost import moe as cost
from refimpl.course import paradigms
from refimpl.course.quiz.evidence import seconds
from refimpl.course.widgets import split_run, stills
from refimpl.course.widgets.all_reduce_stepper import draw_all_reduce
from refimpl.course.widgets.attention_grid import draw_grid
from refimpl.course.widgets.bucket_explorer import draw_buckets
from refimpl.course.widgets.partition_map import draw_partition
from refimpl.course.widgets.partition_run import run_step
from refimpl.course.widgets.router_heat_map import routed
from refimpl.layout import Layout
from refimpl.model.config import Config, init
from refimpl.pipeline import build, simulate
from refimpl.train import mlp as mlp_training


def prose_of(number):
    """The text of all cells of prose of the lesson of this number; 00 is the map, 00_first_run is asked for by name."""
    path, = (path for path in stills.FOLDER.parent.glob(f"{number}*.ipynb")
             if "first_run" in number or "first_run" not in path.stem)
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


@pytest.mark.parametrize("number", sorted({name[:2] for name in stills.STILLS}))
def test_every_picture_of_a_lesson_is_in_it(number):
    mine = {name for name in stills.STILLS if name.startswith(number)}
    assert mine == set(re.findall(r"pictures/(\w+\.svg)", prose_of(number)))


def test_the_numbers_of_the_first_run():
    """The ring's, and those of the network that the cell trains: its options are those of the command."""
    prose, setup, ranks = prose_of("00_first_run"), mlp_training.Setup(), 4
    assert "= 2 \\cdot 3 \\cdot 25 = 150$$" in prose and traffic.ring_all_reduce(100, ranks, 0) == 2 * 3 * 25 == 150
    assert "A lap of four ranks has three steps" in prose and traffic.ring_messages(ranks) == 3
    assert "this grows towards $2n$ and no further" in prose
    assert 1.99 < traffic.ring_all_reduce(2**20, 1024, 0) / 2**20 < 2
    assert "Now 101 floats. One chunk has 26 floats, three have 25" in prose
    assert sorted(chunk_sizes(101, ranks)) == [25, 25, 25, 26]
    assert "from the eight before it" in prose and setup.context == 8
    assert "one of 256, so that 2048 numbers go in and 256 come out" in prose and setup.inputs == 8 * 256 == 2048
    assert "128 hidden neurons. They are dealt out to four ranks, 32 each" in prose
    assert chunk_sizes(setup.hidden, ranks) == ranks * (32,) and setup.hidden == 128
    assert "Forward adds up 256 numbers for each sequence, backward 2048. A step has 256 sequences" in prose
    sent = traffic.tensor_parallel_mlp(setup.batch, setup.inputs, 256, ranks, 0)
    ring = lambda features: traffic.ring_all_reduce(256 * features, ranks, 0)
    assert sent == {"forward": ring(256), "backward": ring(2048)}
    assert "a relative difference of $10^{-12}$ after one step" in prose and demo.ALLOWED["first"] == 1e-12


def test_the_numbers_of_the_map():
    prose, rows = prose_of("00"), {paradigm.key: row for paradigm, row in paradigms.compare()}
    llama = models.find(paradigms.DENSE)
    assert "16, 32, 64 or 128 GB" in prose and round(rows["one"].states / 1e9) == 128
    assert "one of 405 billion parameters both numbers are fifty times as large" in prose
    assert round(models.find("llama3-405b").parameters / 1e9) == 406 and \
        round(models.find("llama3-405b").parameters / llama.parameters, -1) == 50
    assert "Tensor parallelism makes everything small, and sends a hundred times as much" in prose
    assert 100 < rows["tp"].sent / rows["pp"].sent < 120
    assert "ZeRO stage 3 sends three times what plain data parallelism does here: with two micro-batches" in prose
    assert paradigms.BATCH // paradigms.GPUS == 2 and round(rows["zero"].sent / rows["dp"].sent, 3) == 3
    assert "on 8 GPUs" in prose and paradigms.GPUS == 8
    assert "Almost three orders of magnitude lie between the messages" in prose
    assert 500 < rows["tp"].messages / rows["pp"].messages < 1000
    assert "a link that is nine times slower" in prose and "450 GB/s inside a node and 50 between" in prose
    card = hardware.find("h100-sxm")
    assert (paradigms.INSIDE, paradigms.BETWEEN) == (450e9, 50e9) == tuple(
        card.link(span).bandwidth for span in ("domain", "network"))
    assert "15 trillion tokens" in prose and "Six operations a parameter and token" in prose
    matrices = llama.parameters - llama.vocabulary * llama.hidden                     # a table is looked up in
    assert llama.flops(1, 1) == pytest.approx(6 * matrices, rel=1e-4)


def test_the_numbers_of_lesson_01():
    """Times of 1 MB at 1 GB/s, in ms; then of links with 10 µs and 50 GB/s."""
    prose = prose_of("01")
    assert "Through rank 0 it takes 14 ms: seven arrays in, then seven out" in prose and "3.5 or 1.75 ms" in prose
    times = {way: seconds(way, 8, 0.0, 1.0) for way in ("to rank 0 and back", "ring")}
    assert times == pytest.approx({"to rank 0 and back": 2 * 7, "ring": 1.75}, rel=1e-12)
    assert "The ring is $P$ times as fast where bytes count" in prose and 14 / 1.75 == 8
    assert "it stays below 2 ms, twice the array through one port" in prose
    assert 1.99 < alpha_beta.ring_all_reduce(1024, 0.0, 1.0) < 2
    assert "Rank 0 sends chunk 3 in step 1: the chunk of its left neighbour" in prose
    assert "rank 0 chunk 3," in draw_all_reduce(4, 1).words
    assert "Three numbers on eight ranks: five chunks are empty" in prose and chunk_sizes(3, 8).count(0) == 5
    assert "6, 8 or 14?" in prose and traffic.ring_messages(8, 2) == 14
    assert "64 ranks all-reduce 1 MB over links with $\\alpha$ = 10 µs and 50 GB/s" in prose
    ring, doubling = ([way(P, 10e-6, nbytes / 50e9) for P, nbytes in ((64, 1e6), (64, 1e9), (1024, 1e6), (1024, 0))]
                      for way in (alpha_beta.ring_all_reduce, alpha_beta.doubling_all_reduce))
    assert "With 1 MB the ring takes seven times as long as doubling" in prose and round(ring[0] / doubling[0]) == 7
    assert "it pays 126 latencies where doubling pays 6" in prose
    assert [way(64, 1, 0) for way in (alpha_beta.ring_all_reduce, alpha_beta.doubling_all_reduce)] == [126, 6]
    assert "With 1 GB doubling takes three times as long as the ring" in prose and round(doubling[1] / ring[1]) == 3
    assert "On 1024 ranks the ring spends over 20 ms on 1 MB, and it would on an empty array" in prose
    assert 20e-3 < ring[3] < ring[2] < 21e-3
    assert "8 GPUs all-reduce 1 GB in 4 ms. Is that 250 or 437.5 GB/s" in prose
    assert (1 / 4e-3, traffic.ring_all_reduce(1e9, 8, 0) / 4e-3 / 1e9) == (250, 437.5)
    assert "the 450 GB/s that a link carries" in prose and hardware.find("h100-sxm").link("domain").bandwidth == 450e9


def test_the_numbers_of_lesson_02():
    prose, ms = prose_of("02"), overlap.bucketed_step
    assert "The values are 1, 2, ..., 13. Rank 0 has the first six of them, rank 1 the other seven" in prose
    assert chunk_sizes(13, 2) == (6, 7) and "Is that 7, the mean of all?" in prose and sum(range(1, 14)) / 13 == 7
    assert "This model has 28 arrays of parameters" in prose and len(init(
        Config("gpt2", vocabulary=11, hidden=12, layers=2, heads=3, ffn=24, context=8), np.random.default_rng(0))) == 28
    assert "$T$ = 20 ms, $B$ = 14 ms" in prose and "With one bucket the step takes 34 ms" in prose
    assert [ms(20.0, 14.0, K, 2, 0.0, 1.0) for K in (1, 4)] == [34, 23.5]
    assert "23.5 ms: a quarter of 14 is left over" in prose and 23.5 - 20 == 14 / 4
    start = {name: parameter.default for name, parameter in inspect.signature(draw_buckets).parameters.items()}
    assert "200 MB of gradients, a backward of 20 ms and 4 buckets of 50 MB. Will 64 buckets of 3 MB" in prose
    assert (start["megabytes"], start["backward_ms"], start["K"]) == (200, 20, 4) and round(200 / 64) == 3
    T, G, P, alpha = 20e-3, 200e6, start["P"], start["alpha_us"] * 1e-6
    beta = lambda bandwidth: 1e-9 / bandwidth
    step = lambda K, P=P, bandwidth=start["bandwidth"]: ms(T, G, K, P, alpha, beta(bandwidth))
    assert "64 buckets do worse: each pays 0.28 ms of latencies" in prose and step(64) > step(4)
    assert alpha_beta.ring_all_reduce(P, alpha, 0.0) == pytest.approx(0.28e-3, rel=1e-12)
    assert "slower, 10 GB/s. Now no number of buckets hides everything. Why does the best bucket grow?" in prose
    best = [min(range(1, 400), key=lambda K, rate=rate: step(K, bandwidth=rate)) for rate in (25.0, 10.0)]
    assert best[1] < best[0] and traffic.ring_all_reduce(G, P, 0) * beta(10.0) > T
    assert "With a ring over 256 ranks one large bucket is best here, and nothing is hidden at all" in prose
    assert min(range(1, 400), key=lambda K: step(K, P=256)) == 1
    assert overlap.hidden(T, G, 1, 256, alpha, beta(25.0)) == pytest.approx(0, abs=1e-12)
    assert "1.3 times from 4 to 64" in prose and "16 times as many gradients, twice as many, or 1.3 times" in prose
    sent = [traffic.data_parallel([6400], P, 0) for P in (4, 64)]
    assert round(sent[1] / sent[0], 1) == 1.3
    latencies, of_bytes = alpha_beta.ring_all_reduce(8, 1e-4, 0.0), 14e-3
    assert "K = \\max\\big((T-B)/A, \\sqrt{T/A}\\big)$" in prose
    assert overlap.best_buckets(20e-3, 8e9, 8, 1e-4, 1e-12) == pytest.approx(
        max((20e-3 - of_bytes) / latencies, (20e-3 / latencies) ** 0.5))


def test_the_numbers_of_lesson_05():
    prose, llama = prose_of("05"), models.find("llama3-70b")
    assert "where the arrays have 4 columns. Every other way also sends what is in the middle, and that has 6" in prose
    assert (split_run.INPUTS, split_run.OUTPUTS, split_run.HIDDEN) == (4, 4, 6)
    gpt3 = models.find("gpt3-175b")
    assert "in a transformer it is four times as wide as the ends" in prose and gpt3.ffn == 4 * gpt3.hidden
    assert "8 query heads and 2 key-value heads on 4 ranks" in prose
    block = lambda t, **how: sum(traffic.tensor_parallel_block(1, 64, 8, t, 0, **how).values()) / (64 * 8)
    assert "= 8\\,\\frac{t-1}{t}\\,b\\,s\\,h$$" in prose and block(8) == 8 * 7 / 8
    assert "From 4 ranks to 8: a rank's computing is halved" in prose and "or a little more?" in prose
    assert 1 < block(8) / block(4) < 1.2
    assert "a layer of $12 h^2$ weights with $h$ = 8192, as wide as Llama 3 70B" in prose and llama.hidden == 8192
    h = s = 8192
    assert 12 * h**2 <= gpt_layer(h) < 1.001 * 12 * h**2
    card = hardware.find("h100-sxm")
    assert "Inside a node a GPU sends 450 GB/s, between nodes 50" in prose
    rates = [card.link(span).bandwidth for span in ("domain", "network")]
    assert rates == [450e9, 50e9]
    share = []
    for t, rate in ((8, rates[0]), (16, rates[1])):
        sending = 4 * alpha_beta.ring_all_reduce(t, 0.0, 2 * s * h / rate)
        share.append(sending / (sending + 3 * 2 * 12 * h**2 * s / t / 400e12))
    assert "which part of the time is communication: 1%, 15% or 50%" in prose
    assert min((0.01, 0.15, 0.5), key=lambda offered: abs(offered - share[0])) == 0.15
    assert "across two nodes the same layer spends most of its time sending" in prose and share[1] > 0.6
    assert "they would add a sixth at most" in prose
    assert context.attention_flops(1, 64, 128, s * s)["forward"] * 6 == 2 * 12 * h**2 * s
    assert "10 instead of 8" in prose and block(8, sequence_parallel=True) / block(8) == 10 / 8
    assert "everything that a layer keeps is cut by $t$" in prose
    kept = lambda t: memory.layer_activations(2048, 1, 12288, 96, t, True, recompute="selective")
    assert kept(8) == kept(1) / 8
    assert "4 ranks, 128,256 ids" in prose and "or fewer than 10" in prose and llama.vocabulary == 128256
    assert traffic.vocabulary_parallel_loss(1, 4, 0) < 10


def gpt_layer(h):
    """Parameters of a layer of a GPT."""
    return sum(memory.layer_parameters(h, 64).values())


def test_the_sum_that_the_text_takes_apart_is_in_the_picture():
    prose = prose_of("01")
    assert "13 = 1 + 4 + 8 is from ranks 0, 2 and 3" in prose and "pictures/01_ring_step.svg" in prose
    assert "1+12=13" in draw_all_reduce(4, 2).svg and 13 == 2**0 + 2**2 + 2**3


def test_what_lesson_04_says_of_its_map_is_so():
    """The first picture; and where a rank holds most, which the text asks for."""
    prose = prose_of("04")
    assert "a model of three layers" in prose and "in the forward of layer 1" in prose
    assert stills.STILLS["04_partition.svg"]().svg == draw_partition(3, 4, 2).svg
    weights = {moment.words: sum(moment.ranks[0].nbytes.values()) for moment in run_step(3, 4).moments}
    assert max(weights, key=weights.get).startswith("backward")
    sent = [sum(run_step(stage, 4).sent.values()) for stage in range(4)]
    assert sent[3] == max(sent) > sent[2] == sent[1] == sent[0]
    for stage, more in ((0, False), (1, False), (2, True), (3, True)):               # with 3 micro-batches
        assert (sum(run_step(stage, 4, 3).sent.values()) > sent[stage]) == more


def test_the_numbers_below_the_first_picture_of_lesson_08_are_those_of_the_timeline():
    prose = prose_of("08")
    t, gpipe = simulate(build("1f1b", 4, 8)), simulate(build("gpipe", 4, 8))
    assert (t.makespan, gpipe.makespan, set(t.idle_seconds + gpipe.idle_seconds)) == (33, 33, {9})
    assert (max(t.peak_activations), max(gpipe.peak_activations)) == (4, 8)
    assert "Both take 33 and idle 9 on every rank" in prose and "keeps 8 activations, 1F1B keeps 4 at most" in prose


def test_what_the_stepper_is_asked_in_lesson_08_is_so():
    """The first backward of rank 0 comes after its forwards; `ends` are in the order of the rank's list."""
    for name, when, kept in (("1f1b", 12, 4), ("gpipe", 17, 6)):
        t = simulate(build(name, 4, 6))
        first = next(k for k, action in enumerate(t.schedule.ranks[0]) if str(action) == "0B0")
        assert (t.ends[0][first], first) == (when, kept)
    assert "At 12, when `0B0` is over; with GPipe at 17, and until then rank 0 keeps all six" in prose_of("08")


def test_what_the_text_of_lesson_09_says_of_its_picture_is_in_the_picture():
    prose = prose_of("09")
    ran = routed()
    assert "a line at the capacity of 8" in prose and ran.room == 8
    assert "Two experts are chosen more often than they have room for" in prose and (ran.load > 8).sum() == 2
    assert len(ran.choice) == 24 and len(ran.load) == 8


def test_the_numbers_of_lesson_09():
    prose = prose_of("09")
    assert "With even loads a rank sends 24 rows: 8 of its 32" in prose and cost.balanced_all_to_all(16, 2, 1, 4) == 24
    assert "46.7 and 12.9" in prose                                       # computed in a cell, and asserted there
    layout = Layout(dp=16, tp=8, pp=8, ep=8)
    assert "1024 or 8192" in prose and layout.world == 1024
    assert "reaches over 8 nodes" in prose and len({layout.node(rank) for rank in layout.group("ep", 0)}) == 8
    assert "room for 18 tokens" in prose and cost.capacity(2, 24, 8, 3.0) == 18


def test_the_numbers_of_lesson_07():
    prose = prose_of("07")
    assert "53% on 8 ranks" in prose and round(context.efficiency(2**20, 8, "contiguous"), 2) == 0.53
    assert "52% forward for contiguous pieces" in prose                   # measured elsewhere: facts of the source
    assert "Rank 0 has nothing to do and waits, the others have 16 pairs each" in prose
    assert "rank 0 0 with the keys of rank 3, rank 1 16" in draw_grid(step=1).words
    half_a_block_and_whole_ones = [context.step_pairs(64, 8, 7, step, "contiguous") for step in range(8)]
    assert half_a_block_and_whole_ones == [36] + 7 * [64]                 # P - 1/2 blocks, about
