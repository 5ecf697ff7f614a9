"""What a question's `check` may call on meshes, sequence parallelism and checkpoints: experiments, as in evidence.py.

    place(13, 'dp', tp=2, dp=2, pp=4)       where a rank finds itself                 a mesh is made on ranks
    apart('pp', tp=2, dp=4, pp=2)           ranks between neighbours of a group       the same
    layer_sends(4, True)                    what a layer sends, in b s h (t-1)/t      a ledger counts
    layer_keeps(4, True, ...)               bytes of activations                      cost/memory.py, held to a meter
    steps_lost(4, 10)                       steps that a crash costs                  a run crashes and is resumed
    resumes_alike((2, 1, 2), (1, 2, 1))     another layout goes on                    two runs are compared
"""

import tempfile
from functools import cache

import numpy as np

from refimpl import Layout, Ledger, Link, Mesh, Network, run
from refimpl.collectives import all_gather, all_reduce
from refimpl.cost.memory import layer_activations
from refimpl.model import text
from refimpl.model.config import Config, block_shapes
from refimpl.parallel import block, sequence, shards
from refimpl.precision import Precision
from refimpl.testing import cut
from refimpl.train import checkpoint
from refimpl.train.faults import Crash
from refimpl.train.run import Plan, on_rank
from refimpl.train.setup import Setup
from refimpl.train.single import Recipe

AXES = ("tp", "cp", "dp", "pp", "dp_cp", "ep", "expert_tp", "expert_dp")

# -- the mesh ---------------------------------------------------------------------------------------------------------


@cache
def meshes(order="tp-cp-dp-pp", **sizes):
    """[{axis: (place in its group, the group's ranks)} of each rank], as the ranks find it."""
    def program(comm):
        mesh, me = Mesh(comm, Layout(order=order, **sizes)), np.array([comm.rank])
        return {axis: (getattr(mesh, axis).rank, tuple(all_gather(me, getattr(mesh, axis)).tolist())) for axis in AXES}

    return run(program, Layout(order=order, **sizes).world)


def place(rank, axis, **sizes):
    """Where a rank is along an axis."""
    return meshes(**sizes)[rank][axis][0]


def apart(axis, **sizes):
    """How far apart, in ranks, two neighbours of a group are."""
    group = meshes(**sizes)[0][axis][1]
    return group[1] - group[0]


def group_size(axis, **sizes):
    """Ranks of one group."""
    return len(meshes(**sizes)[0][axis][1])


def nodes_of_group(axis, node_size, **sizes):
    """On how many nodes the first group of an axis has ranks."""
    return len({rank // node_size for rank in meshes(**sizes)[0][axis][1]})


def crosses(axis, node_size, **sizes):
    """Whether any group of an axis has ranks on two nodes."""
    return any(len({rank // node_size for rank in row[axis][1]}) > 1 for row in meshes(**sizes))


def norm_summed_over(group, tp, dp):
    """A norm's gradient, not sequence-parallel, summed over a group of the mesh or "all": times what is right."""
    def program(comm):
        mesh = Mesh(comm, Layout(tp=tp, dp=dp))
        mine = np.array([1.0 + mesh.dp.rank])                        # tp ranks have seen the same tokens
        return all_reduce(mine, comm if group == "all" else getattr(mesh, group))[0]

    return run(program, tp * dp)[0] / (dp * (dp + 1) / 2)


def sequences(dp, m, b, **others):
    """How many different sequences all ranks together see in a step of m micro-batches of b."""
    layout = Layout(dp=dp, **others)
    setup = Setup(Config("gpt2", vocabulary=16, hidden=64, layers=8, heads=8, context=64), layout, 64, dp * m * b, b)
    return len({number for rank in range(layout.world) for k in range(setup.microbatches)
                for number in setup.sequences(layout.coordinates(rank)["dp"], k)})


@cache
def ring_across(P, node_size, faster):
    """How many times as long a ring all-reduce of P ranks takes on nodes of `node_size`, with links so much slower."""
    def program(comm):
        all_reduce(np.ones(P * 8), comm, algorithm="ring")
        return comm.clock

    inside, outside = Link(0.0, 1.0), Link(0.0, float(faster))
    spread, together = Network(inside, outside, node_size), Network(inside)
    return max(run(program, P, network=spread)) / max(run(program, P, network=together))


# -- sequence parallelism ---------------------------------------------------------------------------------------------

@cache
def ran_layer(t, sequence_parallel, heads=8):
    """(ledger, [(output, gradients) of each rank]) of a layer, forward and backward, on t ranks."""
    config, rng = Config("gpt2", vocabulary=16, hidden=16, layers=1, heads=heads), np.random.default_rng(0)
    parameters = {name: rng.normal(size=shape) for name, shape in block_shapes(config).items()}
    x, dy, log = rng.normal(size=(2, 8, 16)), rng.normal(size=(2, 8, 16)), Ledger()

    def program(comm):
        part = lambda whole: cut(whole, 1, comm.rank, t) if sequence_parallel else whole
        with comm.phase("forward"):
            y, saved = block.forward(part(x), shards.shard(parameters, config, comm.rank, t), config, comm,
                                     sequence_parallel=sequence_parallel)
        with comm.phase("backward"):
            _, gradients = block.backward(part(dy), saved)
        return y, gradients

    return log, run(program, t, ledger=log)


def layer_sends(t, sequence_parallel, phase=None):
    """What rank 0 sends for a layer, in units of b s h (t-1)/t."""
    log, _ = ran_layer(t, sequence_parallel)
    return log.bytes_sent(rank=0, phase=phase) / 8 / (2 * 8 * 16 * (t - 1) / t)


def collectives(t, sequence_parallel, name):
    """How many collectives of this name a rank takes part in for one layer: all_reduce, all_gather, reduce_scatter."""
    log, _ = ran_layer(t, sequence_parallel)
    return log.messages(rank=0, collective=name) / ((2 if name == "all_reduce" else 1) * (t - 1))


def own_gradient(name, t):
    """Whether a rank's gradient of this parameter is an addend, sequence-parallel: it differs, and the sum is right."""
    right = ran_layer(1, False)[1][0][1][name]
    parts = [gradients[name] for _, gradients in ran_layer(t, True)[1]]
    if parts[0].shape != right.shape:                                # the rank's own part of the parameter
        return False
    return bool(np.allclose(sum(parts), right) and not np.allclose(parts[0], right))


def averaged(name, t):
    """A parameter's gradient averaged over the ranks, sequence-parallel: how many times the right one it is."""
    right = ran_layer(1, False)[1][0][1][name]
    mean = sum(gradients[name] for _, gradients in ran_layer(t, True)[1]) / t
    return float((mean * right).sum() / (right * right).sum())


def positions_of(s, t, rank):
    """How many of s positions a rank has."""
    part = sequence.own(s, rank, t)
    return part.stop - part.start


# -- checkpoints ------------------------------------------------------------------------------------------------------

def run_of(plan, dp=1, tp=1, pp=1, dtype="float64"):
    """Train a tiny model: every rank's `History`."""
    config = Config("gpt2", vocabulary=text.VOCABULARY, hidden=16, layers=2, heads=2, context=16)
    setup = Setup(config, Layout(dp=dp, tp=tp, pp=pp), 16, 4, recipe=Recipe(precision=Precision(dtype)))
    return run(on_rank, setup.layout.world, setup, text.load(None), plan)


@cache
def steps_lost(every, crash):
    """Steps to be done again when a rank dies as step `crash` begins, with a checkpoint after each `every` steps."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            run_of(Plan(steps=crash + 1, save=folder, every=every, crash_at=(crash, 0)))
        except Crash:
            pass
        found = checkpoint.checkpoints(folder)
        done = checkpoint.read(found[-1])[0]["number"] if found else 0
    return crash - 1 - done


@cache
def resumes_alike(before, after):
    """Whether 2 steps as (dp, tp, pp) = before, and 2 more as `after`, have the losses of 4 steps on one device."""
    names = "dp", "tp", "pp"
    with tempfile.TemporaryDirectory() as folder:
        first = run_of(Plan(steps=2, save=folder), **dict(zip(names, before)))[0].losses
        second = run_of(Plan(steps=4, resume=folder), **dict(zip(names, after)))[0].losses
    return bool(np.allclose(first + second, run_of(Plan(steps=4))[0].losses, rtol=1e-10))


@cache
def saved_bytes_a_parameter(dp=1, dtype="bfloat16"):
    """Bytes of all arrays in a checkpoint, by the model's parameters."""
    with tempfile.TemporaryDirectory() as folder:
        histories = run_of(Plan(steps=1, save=folder, keep=True), dp, dtype=dtype)
        _, held = checkpoint.read(checkpoint.checkpoints(folder)[-1])
    pieces = {(key, start): piece.nbytes for mine in held for key, (start, piece) in mine.items()}
    parameters = sum(piece.size for _, piece in histories[0].parameters.values())
    return sum(pieces.values()) / parameters


def best_interval(cost, between):
    """Of all whole numbers of minutes, the interval of checkpoints that wastes least: each costs `cost`, a crash comes
    every `between`, and loses half of an interval."""
    return min(range(1, int(between)), key=lambda minutes: cost / minutes + minutes / 2 / between)


COMPOSING = {f.__name__: f for f in (
    place, apart, group_size, nodes_of_group, crosses, norm_summed_over, sequences, ring_across, layer_sends,
    collectives, own_gradient, averaged, positions_of, steps_lost, resumes_alike, saved_bytes_a_parameter,
    best_interval)}
COMPOSING["layer_keeps"] = layer_activations
