"""Checker, timeline and runner were written each on its own: on any list of actions they must say the same."""

import dataclasses
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import names_and_chunks

from refimpl import Link, Network, run
from refimpl.pipeline import Action, Pair, Schedule, ScheduleError, Times, build, check, runner, simulate
from refimpl.pipeline.action import parts
from refimpl.pipeline.schedule import loop, v_shape

SECONDS = st.floats(0, 10, allow_subnormal=False)
ANY = {"seed": st.integers(0, 2**32), "name_and_chunks": st.sampled_from([*names_and_chunks(), ("random", 0)]),
       "p": st.integers(1, 5), "m": st.integers(1, 9)}


class Scale:
    """y = w x, dw = dy x: small, and every order of its calls gives the same integers."""

    def __init__(self, w):
        self.w = w

    def forward(self, x):
        return self.w * x, x

    def backward_input(self, dy, x):
        return dy * self.w, dy * x

    def backward_weight(self, dw):
        return {"w": dw}


def execute(schedule, seconds=None, network=None):
    """Run it; per rank the `Step`. Stage s multiplies by s % 3 + 1, micro-batch k is k + 1, the loss is y."""
    def program(comm):
        stages = {stage: Scale(stage % 3 + 1.0) for stage in range(len(schedule.placement))}
        inputs = [np.full(1, k + 1.0) for k in range(schedule.microbatches)]
        return runner.execute(schedule, comm, stages, inputs, lambda y, k: (float(y[0]), np.ones(1)), seconds=seconds)

    return run(program, schedule.stages, rendezvous=True, network=network)


def random_schedule(rng, p, m):
    """A list that nobody would write, but that can run: any order that respects the data, some backwards split."""
    v = rng.choice([1, 1, 2, 3])
    placement = rng.choice([loop(p, v), v_shape(p)] if v == 2 else [loop(p, v)])
    S = p * v
    left = {(stage, k): ["F", *rng.choice(["B", "IW"])] for stage in range(S) for k in range(m)}
    done, rows = set(), [[] for _ in range(p)]
    while left:
        stage, k = rng.choice(sorted(left))
        kind = left[stage, k][0]
        if kind == "F":
            data = stage == 0 or (stage - 1, "F", k) in done
        else:
            data = kind == "W" or stage == S - 1 or (stage + 1, "I", k) in done
        if data:
            done.add((stage, "I" if kind == "B" else kind, k))
            rows[placement[stage]].append(Action(stage, kind, k))
            left[stage, k].pop(0)
            if not left[stage, k]:
                del left[stage, k]
    return Schedule("random", p, m, v, placement, rows)


def some_schedule(seed, name_and_chunks, p, m):
    """The schedule of that name and size, or a random one where there is none."""
    try:
        return build(name_and_chunks[0], p, m, name_and_chunks[1])
    except ValueError:
        return random_schedule(random.Random(seed), p, min(m, 5))


@settings(deadline=None, max_examples=300)
@given(**ANY, times=st.tuples(SECONDS, SECONDS, SECONDS), hop=SECONDS)
def test_any_schedule_with_any_times_is_run_as_it_was_timed(times, hop, **sizes):
    schedule = some_schedule(**sizes)
    proof, t = check(schedule), simulate(schedule, *times, hop=hop)
    steps = execute(schedule, Times(schedule, *times), Network(Link(hop, 0)))
    assert [step.peak_activations for step in steps] == t.peak_activations == list(proof.peak_activations)
    for rank, step in enumerate(steps):
        assert step.events == list(zip(schedule.ranks[rank], t.starts[rank], t.ends[rank]))
    S, m = len(schedule.placement), schedule.microbatches
    product = float(np.prod([stage % 3 + 1.0 for stage in range(S)]))
    assert sum(step.loss for step in steps) == product * m * (m + 1) / 2                          # integers: exact
    for step in steps:
        for stage, named in step.gradients.items():
            assert named["w"] == product / (stage % 3 + 1) * m * (m + 1) / 2


def all_refuse(schedule):
    """The reason, when checker and timeline and runner all refuse; None when none does."""
    reasons = []
    for judge in (check, simulate, execute):
        try:
            judge(schedule)
        except ScheduleError as error:
            reasons.append(str(error).split(" (raised")[0])
    assert len(reasons) in (0, 3) and len(set(reasons)) <= 1, reasons
    return reasons[0] if reasons else None


def changed(schedule, rank, row):
    """The schedule with another list for one rank."""
    rows = list(schedule.ranks)
    rows[rank] = row
    return dataclasses.replace(schedule, ranks=rows)


@settings(deadline=None, max_examples=300)
@given(**ANY)
def test_an_action_dropped_or_doubled_is_refused_by_all_with_its_name(seed, **sizes):
    rng, schedule = random.Random(seed), some_schedule(seed, **sizes)
    rank = rng.randrange(schedule.stages)
    row = schedule.ranks[rank]
    i, j = rng.randrange(len(row)), rng.randrange(len(row) + 1)
    about = [str(part) if part.kind == "F" else f"stage {part.stage}, micro-batch {part.microbatch}"
             for part in parts(row[i])]
    for wrong in ((*row[:i], *row[i + 1:]), (*row[:j], row[i], *row[j:])):
        reason = all_refuse(changed(schedule, rank, wrong))
        assert reason is not None and any(name in reason for name in about)


@settings(deadline=None, max_examples=300)
@given(**ANY)
def test_an_action_moved_to_another_rank_is_refused_by_all_with_both_ranks(seed, **sizes):
    rng, schedule = random.Random(seed), some_schedule(seed, **sizes)
    if schedule.stages == 1:
        return
    here, there = rng.sample(range(schedule.stages), 2)
    row = schedule.ranks[here]
    i, j = rng.randrange(len(row)), rng.randrange(len(schedule.ranks[there]) + 1)
    wrong = changed(changed(schedule, here, row[:i] + row[i + 1:]), there,
                    (*schedule.ranks[there][:j], row[i], *schedule.ranks[there][j:]))
    first = parts(row[i])[0]
    assert f"{first} is on rank {there}, but stage {first.stage} is on rank {here}" in all_refuse(wrong)


@pytest.mark.parametrize("seed", range(3))
def test_an_action_moved_within_its_rank_runs_exactly_when_the_checker_says_so(seed, monkeypatch):
    """Without its check the runner hangs on what the checker refuses, and the world sees that; and on nothing else."""
    allowed = {True: 0, False: 0}

    @settings(deadline=None, max_examples=60, derandomize=True)
    @given(**ANY)
    def holds(**sizes):
        rng, schedule = random.Random(sizes["seed"] + seed), some_schedule(**sizes)
        rank = rng.randrange(schedule.stages)
        row = list(schedule.ranks[rank])
        action = row.pop(rng.randrange(len(row)))
        row.insert(rng.randrange(len(row) + 1), action)
        moved = changed(schedule, rank, row)
        runs = all_refuse(moved) is None
        with monkeypatch.context() as unchecked:
            unchecked.setattr(runner, "check", lambda schedule: None)
            try:
                execute(moved)
                did_run = True
            except Exception as error:                       # a DeadlockError, or a rank that misses what it never made
                assert type(error).__name__ in ("DeadlockError", "KeyError"), error
                did_run = False
        assert did_run == runs
        allowed[runs] += 1

    holds()
    assert min(allowed.values()) > 3                         # both have been seen


@settings(deadline=None, max_examples=300)
@given(**ANY)
def test_two_neighbours_in_a_list_made_a_pair_run_or_are_refused_by_all_alike(seed, **sizes):
    """A pair waits for what either half needs, so that joining may make a circle; the three still agree."""
    rng, schedule = random.Random(seed), some_schedule(seed, **sizes)
    places = [(rank, i) for rank, row in enumerate(schedule.ranks) for i in range(len(row) - 1)
              if all(type(a) is Action for a in row[i:i + 2]) and ("F" in row[i]) != ("F" in row[i + 1])]
    if places:
        rank, i = rng.choice(places)
        row = schedule.ranks[rank]
        joined = changed(schedule, rank, (*row[:i], Pair(row[i], row[i + 1]), *row[i + 2:]))
        if all_refuse(joined) is None:
            t = simulate(joined, 1.1, 0.7, 0.3, 0.17)
            steps = execute(joined, Times(joined, 1.1, 0.7, 0.3), Network(Link(0.17, 0)))
            assert [step.events for step in steps] == [list(zip(*row)) for row in zip(joined.ranks, t.starts, t.ends)]
