"""The runner: every schedule computes what one device computes, in every world, and takes as long as its timeline."""

import dataclasses

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from pipelines import Model, assert_gradients, every_schedule, names_and_chunks

from refimpl import Ledger, Link, Network, run
from refimpl.collectives import all_reduce
from refimpl.pipeline import Times, build, mail, simulate
from refimpl.pipeline.mail import BACKWARD, FORWARD, tag
from refimpl.pipeline.runner import execute
from refimpl.pipeline.tied import TIED, once


@pytest.mark.parametrize("name, chunks", names_and_chunks())
def test_every_schedule_gives_the_gradients_of_one_device_in_the_time_of_its_timeline(name, chunks):
    """p 1 to 5, m 1 to 9, micro-batches and layers that are not alike; sends return only when they are received."""
    times = (1.1, 0.7, 0.3)                                         # no binary fractions: the same sums, or not equal
    for schedule in every_schedule():
        if (schedule.name, schedule.chunks) != (name, chunks):
            continue
        model, log = Model(schedule), Ledger()
        t = simulate(schedule, *times, hop=0.17)
        steps = run(lambda comm, model=model: model.step(comm, seconds=Times(model.schedule, *times)), schedule.stages,
                    ledger=log, rendezvous=True, network=Network(Link(0.17, 0)))
        loss, gradients = model.truth()
        assert_gradients(steps, gradients)
        assert sum(step.loss for step in steps) == pytest.approx(loss, rel=1e-12)
        for rank, step in enumerate(steps):
            assert [action for action, _, _ in step.events] == list(schedule.ranks[rank])
            assert [start for _, start, _ in step.events] == t.starts[rank]
            assert [end for _, _, end in step.events] == t.ends[rank]
            assert step.peak_activations == t.peak_activations[rank]
        assert max(step.events[-1][2] for step in steps) == t.makespan
        assert log.messages(phase=FORWARD) == t.messages["forward"]
        assert log.messages(phase=BACKWARD) == t.messages["backward"] and log.messages() == sum(t.messages.values())


@pytest.mark.parametrize("P", [4])
@pytest.mark.parametrize("name, m, chunks", [(s.name, s.microbatches, s.chunks) for s in every_schedule([4], [3, 8])])
def test_four_stages_in_every_world(P, world, name, m, chunks):
    model = Model(build(name, P, m, chunks))
    steps = run(model.step, P)
    loss, gradients = model.truth()
    assert_gradients(steps, gradients)
    assert sum(step.loss for step in steps) == pytest.approx(loss, rel=1e-12)


@pytest.mark.parametrize("name", ["1f1b", "zb_h1", "dualpipev"])
def test_on_device_arrays_nothing_goes_through_the_host(xp, name):
    model = Model(build(name, 2, 4), xp)
    steps = run(model.step, 2)
    assert_gradients(steps, model.truth()[1])
    gradients = [g for step in steps for named in step.gradients.values() for g in named.values()]
    assert {type(g) for g in gradients} == {type(xp.zeros(1))}


def test_bytes_are_those_of_every_micro_batch_over_every_boundary_each_way():
    for schedule in (build("1f1b", 3, 7), build("zbv", 3, 7)):
        log, model = Ledger(), Model(schedule)
        run(model.step, 3, ledger=log)
        crossings = 2 if schedule.chunks == 1 else 4
        n = sum(x.nbytes for x in model.inputs) * crossings
        assert log.bytes_sent(phase=FORWARD) == log.bytes_sent(phase=BACKWARD) == n


# -- virtual time -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name, chunks", names_and_chunks())
def test_time_with_bandwidth_is_the_timelines_when_every_action_outlasts_a_transfer(name, chunks):
    """A hop is then alpha + bytes * beta, and ports are free. (A pair's two messages, sent at once, share one.)"""
    schedule = build(name, 4, 8, chunks)
    nbytes, alpha, beta = 16 * 8, 0.25, 2.0**-10
    model = Model(schedule)
    model.inputs = model.targets = [np.ones(16)] * 8
    seconds = [0.75 * schedule.chunks, 0.5 * schedule.chunks, 0.25 * schedule.chunks]           # a transfer takes 0.125
    times, t = Times(schedule, *seconds), simulate(schedule, *seconds, hop=alpha + nbytes * beta)

    class Same:
        def forward(self, x):
            return x, None

        def backward_input(self, dy, saved):
            return dy, None

        def backward_weight(self, pending):
            return {}

    def program(comm):
        execute(schedule, comm, dict.fromkeys(range(12), Same()), model.inputs, model.loss, seconds=times)
        return comm.clock

    clocks = run(program, 4, network=Network(Link(alpha, beta)))
    if name == "dualpipev":
        assert t.makespan < max(clocks) <= t.makespan + 8 * nbytes * beta
    else:
        assert clocks == [ends[-1] for ends in t.ends]


def test_stages_may_declare_their_own_work_in_flops():
    """Uneven stages: what each computes, at the network's speed, is the timeline with those times."""
    schedule = build("zb_h1", 3, 5)
    work = {"forward": [1e6, 2e6, 4e6], "input": [2e6, 2e6, 8e6], "weight": [1e6, 1e6, 2e6]}
    model = Model(schedule)

    class Declares:
        def __init__(self, stage, inner, comm):
            self.stage, self.inner, self.comm = stage, inner, comm

        def forward(self, x):
            self.comm.compute(work["forward"][self.stage])
            return self.inner.forward(x)

        def backward_input(self, dy, saved):
            self.comm.compute(work["input"][self.stage])
            return self.inner.backward_input(dy, saved)

        def backward_weight(self, pending):
            self.comm.compute(work["weight"][self.stage])
            return self.inner.backward_weight(pending)

    def program(comm):
        stages = {stage: Declares(stage, inner, comm) for stage, inner in model.stages(comm.rank).items()}
        execute(schedule, comm, stages, model.inputs, model.loss)
        return comm.clock

    t = simulate(schedule, **{kind: [flops / 2**20 for flops in each] for kind, each in work.items()}, hop=0.5)
    assert run(program, 3, network=Network(Link(0.5, 0), flops=2**20)) == [ends[-1] for ends in t.ends]


# -- messages ---------------------------------------------------------------------------------------------------------

def test_sends_are_waited_for_when_they_are_known_to_have_arrived_not_at_the_end():
    """1F1B keeps only as many sent arrays as it keeps activations, however many micro-batches there are."""
    def program(comm):
        open_now, most = set(), [0]
        isend = comm.isend

        def counted(x, dst, tag=0):
            request = isend(x, dst, tag)
            open_now.add(request)
            most[0] = max(most[0], len(open_now))
            wait = request.wait
            request.wait = lambda: (open_now.discard(request), wait())[1]
            return request

        comm.isend = counted
        Model(build("1f1b", 4, 40)).step(comm)
        return most[0], len(open_now)

    most, left = zip(*run(program, 4, rendezvous=True), strict=True)
    assert max(most) <= 2 * 4 and left == (0, 0, 0, 0)


def test_every_message_of_a_step_has_a_tag_of_its_own():
    for schedule in (build("interleaved", 2, 8, 3), build("dualpipev", 2, 8)):
        data = [(stage, kind, k) for stage in range(len(schedule.placement)) for kind in "FI" for k in range(8)]
        assert len({tag(schedule, one) for one in data}) == len(data)


@pytest.mark.parametrize("name, chunks", names_and_chunks())
def test_more_messages_than_tags_still_find_their_receivers(name, chunks, monkeypatch):
    monkeypatch.setattr(mail, "TAGS", 10)
    model = Model(build(name, 2, 6, chunks))
    assert tag(model.schedule, (1, "F", 5)) == tag(model.schedule, (0, "I", 5)) == 5
    assert_gradients(run(model.step, 2), model.truth()[1])


def test_A02_neighbours_that_send_to_each_other_at_once_do_not_hang():
    """In 1F1B's steady state a rank sends forward while its neighbour sends back; 2 and 3 ranks, rendezvous."""
    for p in (2, 3):
        model = Model(build("1f1b", p, 6))
        assert_gradients(run(model.step, p, rendezvous=True), model.truth()[1])


# -- the loss, and gradients over several calls -----------------------------------------------------------------------

def program_in_parts(parts_, **options):
    """A program that runs several schedules, one after the other, as one step."""
    def program(comm):
        step = None
        for model in parts_:
            step = model.step(comm, after=step, **options)
        return step

    return program


def test_A20_a_batch_in_one_run_or_several_or_unpipelined_gives_the_same_gradients():
    """8 micro-batches at once, 4 and 4, 1 and 7: scaled by the whole batch's size, once."""
    whole = Model(build("1f1b", 3, 8))
    loss, gradients = whole.truth()
    assert_gradients(run(whole.step, 3), gradients)
    for cuts in ((0, 4, 8), (0, 1, 8), (0, 2, 5, 8)):
        parts_ = []
        for first, last in zip(cuts, cuts[1:]):
            part = Model(build("1f1b", 3, last - first), scale=whole.scale)
            part.inputs, part.targets = whole.inputs[first:last], whole.targets[first:last]
            parts_.append(part)
        steps = run(program_in_parts(parts_), 3)
        assert_gradients(steps, gradients)
        assert steps[-1].loss == pytest.approx(loss, rel=1e-12)


def test_A20_gradients_of_one_stay_one_over_accumulation():
    """Every micro-batch's gradient is 1; 4 micro-batches, 2 calls: the mean is 1.0, not (1 + 4)/4."""
    class One:
        def forward(self, x):
            return x, None

        def backward_input(self, dy, saved):
            return dy, dy

        def backward_weight(self, dy):
            return {"w": dy}

    schedule = build("1f1b", 2, 4)

    def program(comm):
        step = None
        for _ in range(2):
            step = execute(schedule, comm, {0: One(), 1: One()}, [np.zeros(1)] * 4, lambda y, k: (1.0, np.ones(1)),
                           scale=1 / 8, after=step)
        return step

    steps = run(program, 2)
    assert [step.gradients for step in steps] == [{0: {"w": [1.0]}}, {1: {"w": [1.0]}}]
    assert [step.loss for step in steps] == [0.0, 1.0]


def test_gradients_are_the_steps_own_arrays_whatever_the_stage_does_with_its_buffer():
    class Buffer:
        def __init__(self):
            self.buffer = np.zeros(1)

        def forward(self, x):
            return x, x

        def backward_input(self, dy, saved):
            return dy, saved

        def backward_weight(self, x):
            self.buffer[:] = x
            return {"w": self.buffer}

    step, = run(lambda comm: execute(build("1f1b", 1, 3), comm, {0: Buffer()}, [np.full(1, 2.0**k) for k in range(3)],
                                     lambda y, k: (0.0, np.ones(1))), 1)
    assert step.gradients == {0: {"w": [7.0]}}


# -- replicas ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb_h1", "interleaved", "zbv"])
@pytest.mark.parametrize("m", [1, 2, 6])
def test_A07_each_gradient_is_reduced_once_over_replicas_after_its_last_backward(name, m):
    """dp2 x pp2: on the last stage too, which has no warm-up and so no cool-down; and not once per micro-batch."""
    schedule = build(name, 2, m)
    models = [Model(schedule, scale=1.0), Model(schedule, scale=1.0)]
    models[1].inputs = [x + 1 for x in models[0].inputs]
    log = Ledger()

    def program(comm):
        pp, dp = comm.split(comm.rank // 2, name="pp"), comm.split(comm.rank % 2, name="dp")
        calls = []

        def reduce(stage, gradients):
            calls.append(stage)
            for g in gradients.values():
                all_reduce(g, dp, out=g)
                g /= 2

        model = models[comm.rank // 2]
        step = execute(schedule, pp, model.stages(pp.rank), model.inputs, model.loss, stage_done=reduce)
        return step, calls

    results = run(program, 4, ledger=log, rendezvous=True)
    means = {key: (a + b) / 2 for (key, a), b in zip(models[0].truth()[1].items(), models[1].truth()[1].values())}
    for replica in (results[:2], results[2:]):
        assert_gradients([step for step, _ in replica], means)
        assert [sorted(calls) for _, calls in replica] == [schedule.stages_of(0), schedule.stages_of(1)]
    for (step, _), (twin, _) in zip(results[:2], results[2:]):
        for stage, named in step.gradients.items():
            for key, g in named.items():
                assert_array_equal(g, twin.gradients[stage][key])            # the same bits on both
    elements = sum(g.size for g in means.values())
    assert log.bytes_sent(group="dp") == 2 * elements * 8                # a group of two: each sends each element once


# -- tied weights -----------------------------------------------------------------------------------------------------

class Tied:
    """A stage whose only gradient, of the embedding's copy, is what it is told."""

    def __init__(self, name, gradient):
        self.name, self.gradient = name, np.full((2, 2), float(gradient))

    def forward(self, x):
        return x, None

    def backward_input(self, dy, saved):
        return dy, None

    def backward_weight(self, pending):
        return {self.name: self.gradient}


@pytest.mark.parametrize("name", ["1f1b", "zbv", "interleaved"])
def test_A22_tied_embeddings_are_summed_over_both_stages_after_their_replicas_mean(name):
    """dp2 x pp2, first stage 1 and 3, last stage 10 and 20: both copies 2 + 15 = 17, not 16 and 22; in a norm once."""
    schedule, log = build(name, 2, 1), Ledger()
    last, tied = len(schedule.placement) - 1, [("embedding", "head")]

    def program(comm):
        replica = comm.rank // 2
        pp, dp = comm.split(replica, name="pp"), comm.split(comm.rank % 2, name="dp")
        stages = {stage: Tied(f"w{stage}", 0) for stage in range(last)}
        stages |= {0: Tied("embedding", [1, 3][replica]), last: Tied("head", [10, 20][replica])}

        def mean(stage, gradients):
            for key in gradients:
                gradients[key] = all_reduce(gradients[key], dp) / 2

        step = execute(schedule, pp, stages, [np.zeros(1)], lambda y, k: (0.0, y), stage_done=mean, tied=tied)
        counted = [(stage, key) for stage, key, _ in once(schedule, step.gradients, tied)]
        return step.gradients, counted

    results = run(program, 4, ledger=log, rendezvous=True)
    copies = [named[key] for gradients, _ in results for named in gradients.values() for key in named if key[0] in "eh"]
    assert len(copies) == 4
    for copy in copies:
        assert_array_equal(copy, np.full((2, 2), 17.0))
    assert [(0, "embedding")] * 2 == [key for _, counted in results for key in counted if key[1][0] in "eh"]
    on_one_rank = schedule.placement[0] == schedule.placement[-1]
    assert log.bytes_sent(phase=TIED) == (0 if on_one_rank else 2 * 2 * 32)


def test_A22_tied_over_stages_equals_tied_on_one_device():
    """Both parts of a shared matrix's gradient: alone in one stage, over 2 and 3 stages; equal bits on both copies."""
    class Shared:
        """y = x w (first), y = x w^T (last), with one w of which every stage has its copy."""

        def __init__(self, w, first, last):
            self.w, self.first, self.last = w, first, last

        def forward(self, x):
            h = x @ self.w if self.first else x
            return (h @ self.w.T if self.last else h), (x, h)

        def backward_input(self, dy, saved):
            x, h = saved
            dh = dy @ self.w if self.last else dy
            return (dh @ self.w.T if self.first else dh), (x, h, dy, dh)

        def backward_weight(self, pending):
            x, h, dy, dh = pending
            return ({"embedding": x.T @ dh} if self.first else {}) | ({"head": dy.T @ h} if self.last else {})

    rng = np.random.default_rng(0)
    w, inputs = rng.standard_normal((5, 3)), [rng.standard_normal((2, 5)) for _ in range(4)]
    found = {}
    for p in (1, 2, 3):
        def program(comm, p=p):
            stages = {stage: Shared(w, stage == 0, stage == p - 1) for stage in range(p)}
            return execute(build("1f1b", p, 4), comm, stages, inputs, lambda y, k: ((y * y).sum() / 2, y),
                           tied=[("embedding", "head")]).gradients

        found[p] = run(program, p)
        first, last = found[p][0][0]["embedding"], found[p][-1][p - 1]["head"]
        assert_array_equal(first, last)
        np.testing.assert_allclose(first, found[1][0][0]["embedding"], rtol=1e-12)
    assert [key for _, key, _ in once(build("1f1b", 1, 4), found[1][0], [("embedding", "head")])] == ["embedding"]
    assert [key for _, key, _ in once(build("1f1b", 1, 4), found[1][0])] == ["embedding", "head"]


def test_one_stage_with_one_shared_array_has_its_whole_gradient_already():
    step, = run(lambda comm: execute(build("1f1b", 1, 1), comm, {0: Tied("w", 3)}, [np.zeros(1)], lambda y, k: (0.0, y),
                                     tied=[("w", "w")]), 1)
    assert_array_equal(step.gradients[0]["w"], np.full((2, 2), 3.0))
    assert [key for _, key, _ in once(build("1f1b", 1, 1), step.gradients, [("w", "w")])] == ["w"]


# -- wrong calls ------------------------------------------------------------------------------------------------------

def refused(schedule, ranks=2, **change):
    """What `execute` says to a wrong call, on the first rank that says something."""
    model, log = Model(schedule), Ledger()

    def program(comm):
        given = {"stages": model.stages(comm.rank) if comm.size == schedule.stages else {}, "inputs": model.inputs,
                 "loss": model.loss} | change
        execute(schedule, comm, **given)

    with pytest.raises(ValueError) as caught:
        run(program, ranks, ledger=log)
    assert log.messages() == 0
    return str(caught.value)


def test_arguments_that_do_not_fit_are_refused_before_anything_is_sent():
    schedule = build("1f1b", 2, 3)
    assert "world has 3 ranks, but <1f1b: stages=2" in refused(schedule, ranks=3)
    assert "lacks [0]: in <1f1b: stages=2 microbatches=3 chunks=1> rank 0 has the stages [0]" in refused(
        schedule, stages={})
    assert "2 inputs: <1f1b" in refused(schedule, inputs=[np.zeros((1, 3))] * 2)


def test_tied_names_that_a_stage_has_no_gradients_for_are_refused_with_those_it_has():
    with pytest.raises(ValueError, match="stage 0 has no gradient 'wte', only 2.w1, 2.b1"):
        run(lambda comm: Model(build("1f1b", 1, 1)).step(comm, tied=[("wte", "2.w2")]), 1)


def test_accumulating_onto_gradients_that_have_been_summed_with_others_is_refused():
    """They would be counted twice: once as they are, and once in the sum."""
    model = Model(build("1f1b", 1, 1))
    for last_call in ({"tied": [("0.w1", "1.w1")]}, {"stage_done": lambda stage, gradients: None}):
        def program(comm, last_call=last_call):
            model.step(comm, after=model.step(comm, **last_call))

        with pytest.raises(ValueError, match="after=: its gradients have been summed with those of other ranks"):
            run(program, 1)


def test_a_schedule_that_cannot_run_is_refused_by_the_runner_with_the_checkers_reason():
    schedule = build("1f1b", 2, 2)
    wrong = dataclasses.replace(schedule, ranks=[schedule.ranks[0], schedule.ranks[1][:-1]])
    assert "1f1b: the backward of stage 1, micro-batch 1, on rank 1 needs one B" in refused(wrong)
