"""Bugs that were in real code, and how people mend the wrong thing; counts with one misunderstanding in each."""

from collections import Counter

import numpy as np
import pytest

from refimpl.collectives import all_gather, all_reduce, bounds, reduce_scatter
from refimpl.course.exercises import bugs_cases, catalogue, steps_cases
from refimpl.course.exercises.catalogue import ALL, of_kind
from refimpl.course.exercises.checks import examine, load
from refimpl.course.exercises.exercise import KINDS, Exercise
from refimpl.course.exercises.stubs import INSTEAD, folder, read, stub
from refimpl.testing import cut

# a tied table


def groups(comm):
    D = comm.size // 2
    return comm.split(comm.rank // D, comm.rank, name="dp"), comm.split(comm.rank % D, comm.rank, name="embedding")


def tied_by_all_reduces(buffer, start, size, comm):
    """Right, at the price of a whole buffer."""
    replicas, stages = groups(comm)
    buffer = buffer.copy()
    buffer[start:start + size] = all_reduce(buffer[start:start + size], stages)
    b = bounds(len(buffer), replicas.size)
    return (all_reduce(buffer, replicas) / replicas.size)[b[replicas.rank]:b[replicas.rank + 1]]


def tied_with_all_else(buffer, start, size, comm):
    replicas, stages = groups(comm)
    return reduce_scatter(all_reduce(buffer, stages), replicas) / replicas.size


def tied_without_stages(buffer, start, size, comm):
    replicas, _ = groups(comm)
    return reduce_scatter(buffer, replicas) / replicas.size


def tied_by_the_mean(buffer, start, size, comm):
    replicas, stages = groups(comm)
    buffer = buffer.copy()
    buffer[start:start + size] = all_reduce(buffer[start:start + size], stages) / 2
    return reduce_scatter(buffer, replicas) / replicas.size


def tied_without_replicas(buffer, start, size, comm):
    replicas, stages = groups(comm)
    buffer = buffer.copy()
    buffer[start:start + size] = all_reduce(buffer[start:start + size], stages)
    return cut(buffer, 0, replicas.rank, replicas.size)


def tied_never_divided(buffer, start, size, comm):
    replicas, stages = groups(comm)
    buffer = buffer.copy()
    buffer[start:start + size] = all_reduce(buffer[start:start + size], stages)
    return reduce_scatter(buffer, replicas)


def tied_on_one_stage(buffer, start, size, comm):
    replicas, stages = groups(comm)
    buffer = buffer.copy()
    if stages.rank == 0:
        buffer[start:start + size] = all_reduce(buffer[start:start + size], stages)
    return reduce_scatter(buffer, replicas) / replicas.size


# a mean over tokens

def totals(losses, counts, comm):
    return all_reduce(np.array([(losses * counts).sum(), counts.sum()]), comm)


def mean_right_in_two_messages(losses, counts, comm):
    tokens = all_reduce(counts.sum(), comm)
    return all_reduce((losses * counts).sum(), comm) / tokens, counts / tokens


def mean_of_ranks(losses, counts, comm):
    mine = (losses * counts).sum() / max(counts.sum(), 1)
    return all_reduce(mine, comm) / comm.size, counts / totals(losses, counts, comm)[1]


def mean_over_padding(losses, counts, comm):
    total, n = all_reduce(np.array([(losses * counts).sum(), float(counts.size)]), comm)
    return total / n, counts / n


def mean_of_its_own(losses, counts, comm):
    tokens = max(counts.sum(), 1)
    return (losses * counts).sum() / tokens, counts / tokens


def mean_with_old_weights(losses, counts, comm):
    """The loss is mended, its gradient is not."""
    total, tokens = totals(losses, counts, comm)
    return total / tokens, counts / max(counts.sum(), 1) / comm.size


def mean_with_weights_on_padding(losses, counts, comm):
    total, tokens = totals(losses, counts, comm)
    return total / tokens, np.ones_like(counts) / tokens


def mean_by_gathering(losses, counts, comm):
    everything, there = all_gather(losses, comm), all_gather(counts, comm)
    return (everything * there).sum() / there.sum(), counts / there.sum()


# gates and ups

def gated(x, gate, up):
    a = x @ gate
    return a / (1 + np.exp(-a)) * (x @ up)


def gate_up_exchanged(x, fused, down, comm):
    up, gate = (cut(half, 1, comm.rank, comm.size) for half in np.split(fused, 2, axis=1))
    return all_reduce(gated(x, gate, up) @ cut(down, 0, comm.rank, comm.size), comm)


def gate_up_without_sum(x, fused, down, comm):
    gate, up = (cut(half, 1, comm.rank, comm.size) for half in np.split(fused, 2, axis=1))
    return gated(x, gate, up) @ cut(down, 0, comm.rank, comm.size)


def gate_up_whole_on_every_rank(x, fused, down, comm):
    return all_reduce(gated(x, *np.split(fused, 2, axis=1)) @ down, comm)


def gate_up_alone(x, fused, down, comm):
    """Right, and every rank does everything."""
    return gated(x, *np.split(fused, 2, axis=1)) @ down


# a skipped step

def overflow_by_max(parameter, gradient, scale, comm):
    bad = all_reduce(np.float64(not np.isfinite(gradient).all()), comm, op="max")
    return (parameter.copy(), scale / 2) if bad else (parameter - 0.5 * (gradient / scale), scale)


def overflow_left_out(parameter, gradient, scale, comm):
    bad = all_reduce(np.float64(not np.isfinite(gradient).all()), comm) > 0
    return parameter - 0.5 * np.where(np.isfinite(gradient), gradient, 0) / scale, scale / 2 if bad else scale


def overflow_ignored(parameter, gradient, scale, comm):
    return parameter - 0.5 * (gradient / scale), scale


def overflow_keeps_the_scale(parameter, gradient, scale, comm):
    return overflow_by_max(parameter, gradient, scale, comm)[0], scale


def overflow_with_the_scale(parameter, gradient, scale, comm):
    kept, after = overflow_by_max(parameter, gradient, scale, comm)
    return (kept if after != scale else parameter - 0.5 * gradient), after


def overflow_of_the_gathered(parameter, gradient, scale, comm):
    bad = not np.isfinite(all_gather(gradient, comm)).all()
    return (parameter.copy(), scale / 2) if bad else (parameter - 0.5 * (gradient / scale), scale)


def overflow_asks_where_it_is(parameter, gradient, scale, comm):
    bad = not np.isfinite(gradient).all() and all_reduce(np.float64(1), comm) > 0
    return (parameter.copy(), scale / 2) if bad else (parameter - 0.5 * (gradient / scale), scale)


# a mean over rounds

def rounds_of_means(rounds):
    return sum(sum(one) / max(len(one), 1) for one in rounds) / len(rounds)


def rounds_summed(rounds):
    return sum(map(sum, rounds))


def rounds_of_added_means(rounds):
    return sum(sum(one) / max(len(one), 1) for one in rounds)


def rounds_divided_twice(rounds):
    return sum(map(sum, rounds)) / sum(map(len, rounds)) / len(rounds)


def rounds_last_alone(rounds):
    return sum(rounds[-1]) / len(rounds[-1])


# a column-parallel backward

def column_by_the_mean(x, w, dy, comm):
    return x @ w, all_reduce(dy @ w.T, comm) / comm.size, x.T @ dy


def column_with_all_summed(x, w, dy, comm):
    """More is not better: each rank's dw is of other columns."""
    dw = x.T @ dy
    return x @ w, all_reduce(dy @ w.T, comm), all_reduce(dw, comm) if dw.shape[1] * comm.size == 4 else dw


def column_summed_twice(x, w, dy, comm):
    return x @ w, all_reduce(all_reduce(dy @ w.T, comm), comm), x.T @ dy


def column_by_gathering(x, w, dy, comm):
    return x @ w, all_gather(dy, comm, axis=1) @ all_gather(w, comm, axis=1).T, x.T @ dy


# bytes of a step

def bytes_right(psi, ranks, stage, k, gradient, parameter):
    return psi * (ranks - 1) // ranks * ((2, 1, k, k)[stage] * gradient + (0, 1, 1, 2 * k)[stage] * parameter)


def bytes_with_one_gather(psi, ranks, stage, k, gradient, parameter):
    return psi * (ranks - 1) // ranks * ((2, 1, k, k)[stage] * gradient + (0, 1, 1, k)[stage] * parameter)


def bytes_reduced_once(psi, ranks, stage, k, gradient, parameter):
    return psi * (ranks - 1) // ranks * ((2, 1, 1, 1)[stage] * gradient + (0, 1, 1, 2 * k)[stage] * parameter)


def bytes_all_reduced(psi, ranks, stage, k, gradient, parameter):
    return psi * (ranks - 1) // ranks * (2 * gradient + (0, 1, 1, 2 * k)[stage] * parameter)


def bytes_of_one_dtype(psi, ranks, stage, k, gradient, parameter):
    return bytes_right(psi, ranks, stage, k, gradient, gradient)


def bytes_of_many_ranks(psi, ranks, stage, k, gradient, parameter):
    return psi * ((2, 1, k, k)[stage] * gradient + (0, 1, 1, 2 * k)[stage] * parameter)


def bytes_over_all_ranks(*case):
    return case[1] * bytes_right(*case)


def bytes_as_elements(psi, ranks, stage, k, gradient, parameter):
    return bytes_right(psi, ranks, stage, k, 1, 1)


def bytes_in_words(*case):
    return f"{bytes_right(*case)} bytes"


# interleaving

def price_right(p, m, v):
    return 3 * m + 3 * (p - 1) / v, m * (p * v - 1), p if v == 1 else p + (p - 1) / v


def price_of_plain_messages(p, m, v):
    return price_right(p, m, v)[0], m * (p - 1), price_right(p, m, v)[2]


def price_of_a_wrap_too_many(p, m, v):
    return price_right(p, m, v)[0], m * p * v, price_right(p, m, v)[2]


def price_of_the_plain_bubble(p, m, v):
    return 3 * (m + p - 1), *price_right(p, m, v)[1:]


def price_without_bubble(p, m, v):
    return 3 * m, *price_right(p, m, v)[1:]


def price_of_plain_memory(p, m, v):
    return *price_right(p, m, v)[:2], p


def price_in_chunks(p, m, v):
    return *price_right(p, m, v)[:2], v * price_right(p, m, v)[2]


def price_of_gpipe(p, m, v):
    return *price_right(p, m, v)[:2], m


def price_in_percent(p, m, v):
    return (p - 1) / m


WRONG = [
    (tied_by_all_reduces, "wrong traffic", ["values are right", "a reduce-scatter over replicas"]),
    (tied_with_all_else, "everything added", ["more is added up", "only the table is on both",
                                                "of other parameters"]),
    (tied_without_stages, "missing all-reduce", ["only its own gradient of the table", "over stages for the table"]),
    (tied_by_the_mean, "off by a factor", ["addends of one gradient", "mean is over replicas only"]),
    (tied_without_replicas, "missing all-reduce", ["its own sequences"]),
    (tied_never_divided, "off by a factor", ["2 times too large"]),
    (tied_on_one_stage, "deadlock", ["wait for each other"]),
    (mean_right_in_two_messages, "passed", []),
    (mean_of_ranks, "mean of means", ["1, 3 tokens", "means", "divide once"]),
    (mean_over_padding, "padding counted", ["padding included"]),
    (mean_of_its_own, "missing all-reduce", ["the rank's own tokens"]),
    (mean_with_old_weights, "off by a factor", ["the forward is right, the gradient dlosses is not"]),
    (mean_with_weights_on_padding, "wrong gradient", ["the gradient dlosses is not"]),
    (mean_by_gathering, "wrong traffic", ["two elements to all-reduce"]),
    (gate_up_exchanged, "wrong order", ["gates and ups are exchanged", "gates come first"]),
    (gate_up_without_sum, "missing all-reduce", ["the last line was right"]),
    (gate_up_whole_on_every_rank, "off by a factor", ["2 times too large"]),
    (gate_up_alone, "wrong traffic", ["one all-reduce sends"]),
    (overflow_by_max, "passed", []),
    (overflow_left_out, "not skipped", ["by all elements or by none"]),
    (overflow_ignored, "not a number", ["not finite must not reach"]),
    (overflow_keeps_the_scale, "off by a factor", ["2 times too large", "halve the scale"]),
    (overflow_with_the_scale, "off by a factor", ["still has the scale in it", "no overflow"]),
    (overflow_of_the_gathered, "wrong traffic", ["one element"]),
    (overflow_asks_where_it_is, "deadlock", ["every rank has to take part"]),
    (rounds_of_means, "mean of means", ["[[2.0, 4, 9], [7.0]]", "yours 6, counted 5.5"]),
    (rounds_summed, "never divided", ["yours 8, counted 1"]),
    (rounds_of_added_means, "wrong denominator", ["the rounds' means were added up"]),
    (rounds_divided_twice, "wrong denominator", ["once is enough"]),
    (rounds_last_alone, "off by a factor", ["yours 2, counted 4"]),
    (column_by_the_mean, "off by a factor", ["gradient dx", "2 times too small", "not their mean"]),
    (column_with_all_summed, "wrong gradient", ["the gradient dw is not"]),
    (column_summed_twice, "off by a factor", ["2 times too large"]),
    (column_by_gathering, "wrong traffic", ["only that one"]),
    (bytes_right, "passed", []),
    (bytes_with_one_gather, "laps", ["forward and backward each gather", "ZeRO 3"]),
    (bytes_reduced_once, "laps", ["each micro-batch's gradients are reduced", "ZeRO 2 on 4 ranks, 3 micro-batches"]),
    (bytes_all_reduced, "laps", ["a reduce-scatter is one", "ZeRO 1"]),
    (bytes_of_one_dtype, "wrong dtype", ["in the dtype of gradients", "ZeRO 1 on 2 ranks"]),
    (bytes_of_many_ranks, "limit of many ranks", ["yours 96, counted 72"]),
    (bytes_over_all_ranks, "over all ranks", ["what all ranks send together"]),
    (bytes_as_elements, "elements", ["yours 18, counted 72"]),
    (bytes_in_words, "wrong shape", ["expected a number, the bytes"]),
    (price_right, "passed", []),
    (price_of_plain_messages, "messages", ["boundaries of plain 1F1B", "p=4, m=8, v=2", "yours 24, counted 56"]),
    (price_of_a_wrap_too_many, "messages", ["the last stage sends nothing forward"]),
    (price_of_the_plain_bubble, "bubble", ["do not shorten the bubble", "yours 33, counted 28.5"]),
    (price_without_bubble, "bubble", ["without the bubble"]),
    (price_of_plain_memory, "kept", ["what plain 1F1B keeps", "yours 4, counted 5.5"]),
    (price_in_chunks, "kept", ["chunks are counted"]),
    (price_of_gpipe, "kept", ["what GPipe keeps", "yours 8, counted 4"]),
    (price_in_percent, "wrong shape", ["expected 3 numbers"]),
]
EXERCISE = {"tied": "tied_table", "mean": "token_mean", "gate": "gate_up_shard", "overflow": "overflow_step",
            "rounds": "accumulated_mean", "column": "column_backward", "bytes": "zero_bytes", "price": "schedule_price"}
GIVEN = {"tied_table": ("wrong addends", ["the sum has wrong addends", "a gradient of one replica alone",
                                          "4 ranks, 2 replicas, 2 elements"]),
         "token_mean": ("mean of means", ["1, 3 tokens", "divide once"]),
         "gate_up_shard": ("wrong cut", ["half of the ranks have gates only", "fused (3, 8)"]),
         "overflow_step": ("decided alone", ["the step that another rank has skipped", "scale 8, an overflow"]),
         "accumulated_mean": ("scaled again", ["yours 1.25, counted 1"]),
         "column_backward": ("wrong gradient", ["the forward is right, the gradient dx is not", "missing all-reduce"])}


def check(function, name, diagnosis, says):
    verdict = examine(function, name)
    assert verdict.diagnosis == diagnosis, str(verdict)
    assert verdict.passed == (diagnosis == "passed") and (verdict.score == verdict.points) == verdict.passed
    for words in says:
        assert words.lower() in str(verdict).lower(), str(verdict)


@pytest.mark.parametrize("function, diagnosis, says", WRONG, ids=[row[0].__name__ for row in WRONG])
def test_each_version_gets_its_diagnosis(function, diagnosis, says):
    check(function, EXERCISE[function.__name__.partition("_")[0]], diagnosis, says)


@pytest.mark.parametrize("name", GIVEN)
def test_the_bug_as_it_is_given_runs_and_gets_its_diagnosis(name):
    """The learner's file without its NotImplementedError: what they find when they only delete the line."""
    exercise = catalogue.find(name)
    source = read(folder("solutions") / exercise.filename)
    assert INSTEAD in source
    lines = [line for line in stub(source).split("\n") if "raise NotImplementedError" not in line]
    check(load("\n".join(lines), exercise.filename, name, 10), name, *GIVEN[name])


@pytest.mark.parametrize("name", EXERCISE.values())
def test_advice_is_given_for_diagnoses_that_can_be_made(name):
    made = {row[1] for row in WRONG if EXERCISE[row[0].__name__.partition("_")[0]] == name}
    made |= {GIVEN[name][0]} if name in GIVEN else set()
    advice = set(catalogue.find(name).advice)
    assert len(made - {"passed"}) >= 3 and made - {"passed", "wrong shape", "wrong values"} <= advice | {"deadlock"}
    assert advice <= made | {"missing all-reduce", "not a number", "off by a factor"}


# -- what is held against ---------------------------------------------------------------------------------------------

def test_the_reports_own_numbers():
    """A22: 17, not 16 and 22. A06: 2.5. A05: 7. A25: scale 4 on both. A20: 1, not 1.25."""
    rng = np.random.default_rng(0)
    tied = bugs_cases.tied_table(rng)[0]
    assert tied.expected["shard"].tolist() == [6, 17, 17, 3]
    late, = [arrays for kind, _, _, arrays in tied.suspects if kind == "wrong addends"]
    assert [x.tolist() for x in late] == [[6], [22], [16], [3]]
    assert [float(case.expected["loss"]) for case in bugs_cases.token_mean(rng)[:2]] == [2.5, 7]
    first = bugs_cases.overflow_step(rng)[0]
    assert np.isinf(first.given[0]["gradient"]).any() and np.isfinite(first.given[1]["gradient"]).all()
    assert first.expected["scale"] == 4


@pytest.mark.parametrize("case", steps_cases.ZERO, ids=str)
def test_what_a_ledger_counts_is_what_a_formula_says(case):
    assert steps_cases.sent(*case) == bytes_right(*case)


# -- kinds ------------------------------------------------------------------------------------------------------------

def test_there_are_forty_exercises_of_four_kinds():
    count = Counter(exercise.kind for exercise in ALL)
    assert len(ALL) >= 40 and set(count) == set(KINDS)
    assert count["find the bug"] >= 6 and count["count"] >= 6 and count["design"] >= 2


def test_a_kind_finds_its_exercises():
    assert of_kind() is ALL
    assert {e.kind for e in of_kind("bug")} == {"find the bug"} and of_kind(" Find  the bug") == of_kind("bug")
    assert sum(len(of_kind(kind)) for kind in KINDS) == len(ALL)


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.name)
def test_an_exercise_with_a_bug_shows_it(exercise):
    """Its file has the wrong code to read; no other exercise has."""
    assert (INSTEAD in read(folder("solutions") / exercise.filename)) == (exercise.kind == "find the bug")


@pytest.mark.parametrize("kind", ["", "n", "riddle"])
def test_a_kind_that_there_is_not_is_refused_with_the_nearest(kind):
    with pytest.raises(ValueError, match="nearest '.*'; there are implement, count, find the bug, design"):
        of_kind(kind)
    with pytest.raises(ValueError, match="expected one of implement, count"):
        Exercise(99, "x", "x", "01", 1, 1, ("a", "b", "c"), kind=kind)
