"""How ZeRO sums gradients: in one order on all ranks, each once; norms, verdicts, checkpoints; what is refused."""

import math

import numpy as np
import pytest
from backends import device_array
from numpy.testing import assert_array_equal

from refimpl import CollectiveMismatchError, Layout, Ledger, Mesh, run
from refimpl.arrays import to_host
from refimpl.collectives import all_reduce
from refimpl.model.adam import Adam, decays, moments, update
from refimpl.parallel.data import plan
from refimpl.parallel.zero import Zero
from refimpl.precision import LossScale, Precision, overflow, wide
from refimpl.train.clipping import clip_factor, global_norm

stages = pytest.mark.parametrize("stage", [0, 1, 2, 3])
ADAM = Adam(rate=0.1, decay=0.5)


def whole(results, name, size):
    """One parameter from what the ranks hold of it: [{name: (start, flat array)}]."""
    found = np.full(size, np.nan)
    for result in results:
        if name in result:
            start, array = result[name]
            found[start:start + len(array)] = array
    return found


def sums(zero):
    """{name: (start, the rank's part of the sum)}, on the host."""
    zero.finish()
    return {name: (zero.ranges()[name].start, to_host(g).copy()) for name, g in zero.shards().items()}


# -- who is ready first -----------------------------------------------------------------------------------------------

@stages
@pytest.mark.parametrize("P", [2])
@pytest.mark.parametrize("cap", [1, 4, 6, 8])
def test_A08_gradients_that_are_ready_in_another_order_on_another_rank_are_not_mixed_up(world, P, cap, stage):
    """deepspeedai/DeepSpeed #2343. Sums here, twice the case's means."""
    given = [{"w1": np.full(4, 1.0), "w2": np.full(4, 10.0)}, {"w2": np.full(4, 20.0), "w1": np.full(4, 3.0)}]

    def program(comm):
        parameters = {"w1": np.zeros(4), "w2": np.zeros(4)}
        zero = Zero(parameters, plan({"w1": 4, "w2": 4}, cap)[::-1], comm, stage, ADAM)
        mine, missing = given[comm.rank], {key: set(unit.shapes) for key, unit in zero.units.items()}
        for name, gradient in mine.items():
            key = next(key for key, unit in zero.units.items() if name in unit.shapes)
            missing[key].remove(name)
            (zero.add if missing[key] else zero.reduce)(key, {name: gradient})
        return sums(zero)

    results = run(program, P)
    assert_array_equal(whole(results, "w1", 4), np.full(4, 4.0))
    assert_array_equal(whole(results, "w2", 4), np.full(4, 30.0))


@stages
@pytest.mark.parametrize("P", [1, 2, 3])
def test_A08_a_parameter_that_a_rank_does_not_use_contributes_zeros(xp, P, stage):
    """In a unit of its own, or beside one that is used; in one micro-batch of two."""
    def program(comm):
        parameters = {name: device_array(xp, np.zeros(5)) for name in ("w1", "w2", "w3")}
        zero = Zero(parameters, [["w1", "w2"], ["w3"]], comm, stage, ADAM)
        for k in range(2):
            used = comm.rank == 0 or k == 1
            zero.reduce(1, {"w3": device_array(xp, np.full(5, 1.0))} if used else {}, last=k == 1)
            if comm.rank == 0:
                zero.reduce(0, {"w1": device_array(xp, np.full(5, 1.0))}, last=k == 1)
        return sums(zero)                                                     # on the others finish() finds unit 0

    results = run(program, P)
    for name, expected in (("w1", 2.0), ("w2", 0.0), ("w3", 1.0 + P)):
        assert_array_equal(whole(results, name, 5), np.full(5, expected))


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("P", [2])
def test_A08_ranks_that_reduce_other_units_at_one_time_are_told(P, stage):
    """Without `ordered`, units of one size would be added up crosswise."""
    def program(comm):
        zero = Zero({"w1": np.zeros(4), "w2": np.zeros(4)}, {"one": ["w1"], "two": ["w2"]}, comm, stage, ADAM,
                    ordered=False)
        for key in ("one", "two") if comm.rank else ("two", "one"):
            zero.reduce(key, {})
        zero.finish()

    with pytest.raises(CollectiveMismatchError, match="unit=one") as caught:
        run(program, P)
    assert "unit=two" in str(caught.value)


@stages
@pytest.mark.parametrize(("dtype", "large"), [("float16", 2048), ("bfloat16", 256)])
def test_sums_of_2_byte_gradients_are_rounded_once(dtype, large, stage):
    """large + 1 is large again in 2 bytes, however often: rounded at every stop, two ranks would count for nothing."""
    def program(comm):
        zero = Zero({"w": np.zeros(7)}, [["w"]], comm, stage, ADAM, Precision(dtype))
        zero.reduce(0, {"w": np.full(7, 1 if comm.rank else large, np.float32)})
        return {name: (start, wide(g)) for name, (start, g) in sums(zero).items()}

    assert_array_equal(whole(run(program, 3), "w", 7), np.full(7, large + 2))


@stages
def test_a_tied_table_gets_its_gradients_one_by_one_and_is_reduced_once(stage):
    def program(comm):
        zero = Zero({"table": np.zeros((2, 3)), "w": np.zeros(2)}, [["table"], ["w"]], comm, stage, ADAM)
        zero.add(0, {"table": np.full((2, 3), 1.0)})
        zero.reduce(1, {"w": np.ones(2)})
        zero.reduce(0, {"table": np.full((2, 3), 10.0)})
        return sums(zero)

    def untied(comm):
        Zero({"t": np.zeros(6), "w": np.zeros(2)}, [["t"], ["w"]], comm, stage, ADAM).finish()

    log, once = Ledger(), Ledger()
    assert_array_equal(whole(run(program, 2, ledger=log), "table", 6), np.full(6, 22.0))
    run(untied, 2, ledger=once)
    assert log.bytes_sent() == once.bytes_sent() > 0


@pytest.mark.parametrize("P", [1, 2, 3])
@stages
def test_what_was_added_may_be_changed_before_it_is_summed_and_sums_leave_out_padding(P, stage):
    """As a pipeline does that adds up the two copies of a tied table: first here, then over replicas."""
    def program(comm):
        zero = Zero({"w": np.zeros((2, 2)), "b": np.zeros(3)}, [["w", "b"]], comm, stage, ADAM, alignment=6 * P)
        zero.add(0, {"w": np.ones((2, 2)), "b": np.ones(3)})
        zero.unreduced(0)["w"][...] += 10
        zero.reduce(0, {})
        zero.finish()
        return zero.sums(0).copy()

    results = run(program, P)
    expected = [11.0 * P] * 4 + [1.0 * P] * 3
    if stage:
        assert_array_equal(np.concatenate(results), expected)
    else:
        for result in results:
            assert_array_equal(result, expected)


# -- norm and verdict -------------------------------------------------------------------------------------------------

@stages
@pytest.mark.parametrize("P", [1, 2, 3, 5])
@pytest.mark.parametrize("alignment", [30, 60])
def test_A24_the_norm_is_the_same_under_every_stage(P, alignment, stage):
    """pytorch/torchtitan #596, NVIDIA-NeMo/RL PR #3788: 13, whoever holds 3, 4 and 12; padding counts nowhere."""
    def program(comm):
        zero = Zero({"w": np.zeros(2), "norm.w": np.zeros((1, 1))}, [["w"], ["norm.w"]], comm, stage, ADAM,
                    alignment=alignment)
        share = 2 * (comm.rank + 1) / (P * (P + 1))
        zero.reduce(1, {"norm.w": np.full((1, 1), 12.0 * share)})
        zero.reduce(0, {"w": np.array([3.0, 4.0]) * share})
        zero.finish()
        for key, sum_ in zero.gradients.shards.items():
            sum_[zero.units[key].held(zero.rank):] = np.nan
        groups = [comm] if stage else []
        norm = global_norm(list(zero.shards().values()), groups)
        return norm, clip_factor(norm, 1.0), global_norm(list(zero.shards().values()), groups, math.inf)

    for norm, factor, largest in run(program, P):
        assert norm == pytest.approx(13, rel=1e-14) and largest == pytest.approx(12, rel=1e-14)
        assert factor == pytest.approx(1 / 13, rel=1e-6)


@stages
@pytest.mark.parametrize("P", [2])
def test_A25_an_overflow_on_one_rank_is_everybodys(world, P, stage):
    """pytorch/pytorch #136009, facebookresearch/fairscale PR #179: scales 4 and 4 (faulty: 4 and 8)."""
    start, good = np.arange(1.0, 9.0).astype(np.float32), np.linspace(-1, 1, 8).astype(np.float16)

    def copies(zero):
        return {name: [np.copy(a) for a in held[3:]] for name, held in zero.state().items()}

    def program(comm):
        zero = Zero({"w": start}, [["w"]], comm, stage, ADAM, Precision("float16"))
        scale, found = LossScale(8.0, interval=10), []
        for bad in (False, True, False):
            gradient = good * np.float16(scale.value / P)
            gradient[0] = np.inf if bad and comm.rank == 0 else gradient[0]        # element 0 is rank 0's own
            before = copies(zero), zero.steps, np.copy(zero.parameters(0)["w"])
            zero.reduce(0, {"w": gradient})
            zero.finish()
            local = overflow(zero.shards().values())
            verdict = bool(all_reduce(local, comm, op="max")[0])
            if verdict:
                zero.skip()
                for name, arrays in copies(zero).items():
                    for mine, theirs in zip(arrays, before[0][name]):
                        assert_array_equal(mine, theirs)
                assert zero.steps == before[1]
                zero.release(0)
                assert_array_equal(zero.parameters(0)["w"], before[2])
            else:
                zero.step(1 / scale.value)
            zero.release(0)
            scale = scale.after(verdict)
            found.append((bool(local[0]), verdict, scale.value, zero.steps))
        return found, {name: (held.start, np.copy(held.parameter)) for name, held in zero.state().items()}

    results = run(program, P)
    for rank, (found, _) in enumerate(results):
        saw = rank == 0 or stage == 0
        assert found == [(False, False, 8.0, 1), (saw, True, 4.0, 1), (False, False, 4.0, 2)]
    expected, pair = start.copy(), moments(start)
    for step in (1, 2):
        update(expected, good, pair, step, ADAM)
    found = whole([state for _, state in results], "w", 8)
    assert np.abs(found - expected).max() < 1e-3 < np.abs(expected - start).max()


def test_decay_spares_norms_and_biases_inside_a_flat_unit():
    """Gradients of 0: what moves, moves by decay. A shard may hold parts of both kinds."""
    names = {"mlp.w1": 5, "mlp.b1": 3, "norm1.w": 4, "embedding.tokens": 3}

    def program(comm, stage):
        zero = Zero({name: np.ones(size) for name, size in names.items()}, [list(names)], comm, stage, ADAM)
        zero.reduce(0, {})
        zero.step()
        return {name: p.copy() for name, p in zero.parameters(0).items()}

    for stage in range(4):
        for result in run(program, 4, stage):
            for name, size in names.items():
                assert_array_equal(result[name], np.full(size, 1 - 0.1 * 0.5 if decays(name) else 1.0))


# -- groups and checkpoints -------------------------------------------------------------------------------------------

@stages
@pytest.mark.parametrize("P", [4])
def test_dense_parameters_and_experts_have_a_group_each(world, P, stage):
    """ep 2 on dp 4: dense ones are replicated 4 times, each expert twice; both reduce in the same backward."""
    def program(comm):
        mesh = Mesh(comm, Layout(dp=4, ep=2))
        dense = Zero({"w": np.zeros(6)}, [["w"]], mesh.dp_cp, stage, ADAM)
        expert = Zero({"e": np.zeros(7)}, [["e"]], mesh.expert_dp, stage, ADAM)
        dense.reduce(0, {"w": np.ones(6)})
        expert.reduce(0, {"e": np.full(7, 10.0 ** mesh.ep.rank)})
        return sums(dense), sums(expert), mesh.ep.rank

    results = run(program, P)
    assert_array_equal(whole([dense for dense, _, _ in results], "w", 6), np.full(6, 4.0))
    for ep in (0, 1):
        experts = [expert for _, expert, rank in results if rank == ep]
        assert_array_equal(whole(experts, "e", 7), np.full(7, 2.0 * 10**ep))


def trained(zero, steps):
    """Some steps with gradients that depend on the parameter, and on the step."""
    for _ in range(steps):
        for key in reversed(zero.units):
            gradients = {name: (np.sin(np.arange(p.size) + zero.steps).reshape(p.shape) * 0.1 + p) / zero.comm.size
                         for name, p in zero.parameters(key).items()}
            zero.reduce(key, gradients)
        zero.step()


MODEL = {"w": np.linspace(-1, 1, 10).reshape(2, 5), "b": np.linspace(0, 1, 3), "v": np.linspace(2, 3, 4)}
LAYOUTS = [                                                                        # ranks, stage, units
    (2, 1, [["w", "b"], ["v"]]), (3, 3, [["w"], ["b", "v"]]), (1, 0, [["w", "b", "v"]]), (4, 2, [["v", "w", "b"]])]


@pytest.mark.parametrize("after", LAYOUTS)
@pytest.mark.parametrize("before", LAYOUTS)
def test_a_state_can_be_loaded_into_any_other_layout(before, after):
    """3 steps here, 2 there: as 5 on one rank."""
    def first(comm, stage, units):
        zero = Zero(MODEL, units, comm, stage, ADAM)
        trained(zero, 3)
        return {name: held._replace(parameter=held.parameter.copy(), m=held.m.copy(), v=held.v.copy())
                for name, held in zero.state().items()}

    def second(comm, stage, units):
        zero = Zero({name: np.zeros(p.shape) for name, p in MODEL.items()}, units, comm, stage, ADAM)
        state = {name: held._replace(**{kind: read[kind][name][held.start:held.stop] for kind in read})
                 for name, held in zero.ranges().items()}
        zero.load(state, steps=3)
        trained(zero, 2)
        return {name: p.copy() for key in zero.units for name, p in zero.parameters(key).items()}, zero.steps

    def one(comm):
        zero = Zero(MODEL, [list(MODEL)], comm, 0, ADAM)
        trained(zero, 5)
        return {name: p.copy() for name, p in zero.parameters(0).items()}

    P, stage, units = before
    states = run(first, P, stage, units)
    for state in states:
        assert all(held.shape == MODEL[name].shape for name, held in state.items())
    read = {}
    for kind in ("parameter", "m", "v"):
        parts = [{name: (held.start, getattr(held, kind)) for name, held in state.items()} for state in states]
        read[kind] = {name: whole(parts, name, p.size) for name, p in MODEL.items()}
    P, stage, units = after
    expected = run(one, 1)[0]
    for result, steps in run(second, P, stage, units):
        assert steps == 5
        for name, p in expected.items():
            np.testing.assert_allclose(result[name], p, rtol=1e-12)
            assert np.abs(p - MODEL[name]).min() > 0.01


# -- bad input, before anything is held, sent or changed --------------------------------------------------------------

@pytest.mark.parametrize(("arguments", "says"), [
    ({"units": [["w", "b"]]}, "'v' is in no unit"),
    ({"units": [["w", "b", "v"], ["w"]]}, "'w' is in more than one unit"),
    ({"units": [["w", "b", "v", "x"]]}, "'x', which is not a parameter; there are w, b, v"),
    ({"units": []}, "expected one or more"),
    ({"units": [["w", "b", "v"], []]}, "expected one or more"),
    ({"stage": 4}, "stage=4: expected 0, 1, 2 or 3"),
    ({"alignment": 3}, "alignment=3 is no multiple of the 2 ranks .*nearest 4"),
    ({"buffers": 0}, "buffers=0: .*nearest 1"),
    ({"parameters": MODEL | {"b": np.zeros(3, np.float32)}}, "stored in float32, float64: give precision"),
    ({"parameters": {name: p.astype(int) for name, p in MODEL.items()}}, "stored in int64"),
])
def test_what_does_not_fit_is_refused(arguments, says):
    def program(comm):
        Zero(**{"parameters": MODEL, "units": [["w", "b", "v"]], "comm": comm, "stage": 1, "adam": ADAM} | arguments)

    log = Ledger()
    with pytest.raises(ValueError, match=says):
        run(program, 2, ledger=log)
    assert log.messages() == 0


@pytest.mark.parametrize(("misuse", "says"), [
    (lambda zero: zero.reduce(0, {"x": np.ones(2)}), "'x' is not a parameter of unit 0, which has w, b"),
    (lambda zero: zero.reduce(0, {"b": np.ones(2)}), r"gradient of 'b' has shape \(2,\), expected \(3,\)"),
    (lambda zero: (zero.reduce(1, {}), zero.reduce(1, {})), "unit 1 gets more gradients after its last .*last=False"),
    (lambda zero: (zero.finish(), zero.reduce(1, {})), "after finish"),
    (lambda zero: zero.reduce("x", {}), "'x' is no unit; there are 0, 1"),
    (lambda zero: zero.parameters(2), "2 is no unit; there are 0, 1"),
    (lambda zero: zero.load(zero.ranges(), 1), "w: this rank holds elements 0..9 .* cut parameter, m and v as"),
    (lambda zero: zero.load({}, 1), r"w: this rank holds elements 0..9 of shape \(2, 5\); the state has none"),
    (lambda zero: zero.load(zero.state() | {"b": zero.state()["b"]._replace(stop=2)}, 1),
     "b: this rank holds elements 0..2"),
])
def test_a_misuse_is_named(misuse, says):
    def program(comm):
        misuse(Zero(MODEL, [["w", "b"], ["v"]], comm, 1, ADAM))

    with pytest.raises(ValueError, match=says):
        run(program, 1)


@pytest.mark.parametrize("stage", [2, 3])
def test_gradients_after_a_units_last_reduction_are_not_lost_and_not_left_for_the_next_step(stage):
    def program(comm):
        zero = Zero(MODEL, [["w", "b"], ["v"]], comm, stage, ADAM)
        zero.reduce(1, {"v": np.ones(4)})
        zero.add(1, {"v": np.ones(4)})
        zero.finish()

    with pytest.raises(ValueError, match=r"unit 1 was given gradients after its last reduce\(\): add them before it"):
        run(program, 2)


def test_a_gradient_wider_than_what_2_bytes_are_computed_in_is_refused():
    def program(comm):
        Zero(MODEL, [["w", "b", "v"]], comm, 2, ADAM, Precision("bfloat16")).reduce(0, {"b": np.ones(3)})

    with pytest.raises(ValueError, match="of 'b' has dtype float64, .* in uint16; expected that, or float32"):
        run(program, 1)
