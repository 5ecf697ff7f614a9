"""One rank of a training run under every dimension at once, and the same run, step by step, as on one device.

    a step      tokens of the micro-batches                             text, setup.py
                valid targets, over dp and cp                           one number
                forward and backward, as the schedule says              pipeline/runner.py, stage.py
                    gradients summed over replicas while it goes on     weights.py, parallel/zero.py
                tied tables: the two ends' gradients added              pp, two ranks
                overflow? the norm, clipped                             clipping.py, one number each
                Adam on the rank's shards                               parallel/zero.py
                the loss, over all ranks                                one number

Each of the lines is an operator with a test of its own; here they follow one another. What one device does in their
place: single.py.
"""

import numpy as np

from refimpl.arrays import array_namespace, to_device, to_host
from refimpl.collectives import all_reduce
from refimpl.model.block import Place
from refimpl.model.config import init, shapes
from refimpl.model.loss import IGNORED
from refimpl.model.moe import buffers
from refimpl.parallel import expert_groups, heads, shards, vocabulary
from refimpl.parallel.zero import Zero
from refimpl.pipeline import execute
from refimpl.pipeline.tied import add_tied
from refimpl.precision import LossScale, overflow
from refimpl.train import routers
from refimpl.train.clipping import clip_factor, counted, global_norm
from refimpl.train.single import Step
from refimpl.train.stage import Stage, parts_of
from refimpl.train.weights import Weights, units_of
from refimpl.world.mesh import Mesh

COUNT, LOSS, OVERFLOW = "valid targets", "loss", "overflow"                        # phases: the ledger's names
TABLE = "embedding.tokens"


def first_parameters(setup):
    """The whole model's fresh parameters, the same on every rank: host arrays by name, in the optimizer's dtype."""
    return init(setup.config, np.random.default_rng(setup.recipe.seed), setup.recipe.precision.master)


def names_of(config, parts):
    """The parameters that these parts of the model work with, in the order of their use."""
    head = ("norm.", "head.") if "head" in parts else ()
    prefixes = (*(f"{part}." for part in parts if part != "head"), *head)
    tied = config.tied and "head" in parts
    return [name for name in shapes(config) if name.startswith(prefixes) or name == TABLE and tied]


class Trainer:
    """One rank of a run. Every rank of `comm` makes one, with the same `setup` and `data`.

    comm          exactly setup.layout.world ranks
    data          the text, bytes
    parameters    the whole model's, host arrays by name; fresh ones unless given
    like          an array of the library to compute with; NumPy's unless given
    watch         see stage.py

    number        batches so far        scale    the loss scale, or None
    resident      containers of all arrays that are held, by kind, for `Meter(**trainer.resident)`
    """

    def __init__(self, comm, setup, data, parameters=None, like=None, watch=None):
        self.comm, self.setup, self.data = comm, setup, data
        self.like = np.empty(0) if like is None else like
        self.mesh = mesh = Mesh(comm, setup.layout)
        self.sharing = heads.sharing(mesh.tp, setup.config)
        self.core = setup.core(mesh.cp)
        self.experts = expert_groups.of_mesh(mesh) if setup.config.experts else None
        self.share = self.experts.share if self.experts else None
        self.number, self.scale = 0, setup.recipe.scale
        stages = setup.pipeline.stages_of(mesh.pp.rank)
        parts = [part for stage in stages for part in parts_of(setup, stage)]
        self.names = names_of(setup.config, parts)
        mine = self.cut(first_parameters(setup) if parameters is None else parameters)
        self.zeros = self._zeros(mine)
        self.buffers = buffers(mine, setup.config)
        self.weights = Weights(self.zeros, setup.config, parts, setup.microbatches, self.finish)
        self.stages = {stage: Stage(setup, stage, mesh, self.weights, self.place_of, self.buffers, watch)
                       for stage in stages}
        self.flags = {(zero, key): self._flags(zero, key) for zero in self.zeros for key in zero.units}
        self.resident = {kind: [zero.resident[kind] for zero in self.zeros] for kind in self.zeros[0].resident}
        self.resident["saved"] = [stage.kept for stage in self.stages.values()]

    def _zeros(self, mine):
        """The optimizer and the replicas of dense parameters, and of experts."""
        setup, mesh, recipe = self.setup, self.mesh, self.setup.recipe
        dense = [name for name in mine if not expert_groups.is_expert(name)]
        experts = [name for name in mine if expert_groups.is_expert(name)]
        return [Zero({name: mine[name] for name in names}, units_of(names, mesh.tp.size), comm, setup.zero, recipe.adam,
                     recipe.precision, ordered=False)
                for names, comm in ((dense, mesh.dp_cp), (experts, mesh.expert_dp)) if names]

    def cut(self, whole):
        """This rank's part of whole arrays, by name: host arrays in, arrays where the rank computes out."""
        mine = shards.shard({name: whole[name] for name in self.names}, self.setup.config, self.mesh.tp.rank,
                            self.mesh.tp.size, share=self.share)
        return {name: to_device(p, self.like) for name, p in mine.items()}

    def observe(self, look):
        """Have `look` called whenever a stage has computed something: to see what is held then. None: no more."""
        for stage in self.stages.values():
            stage.look = look

    # -- the batch ----------------------------------------------------------------------------------------------------
    def place_of(self, k):
        """Which part of the batch micro-batch k is, on this rank and in this step."""
        setup, mesh = self.setup, self.mesh
        return Place(setup.sequences(mesh.dp.rank, k), setup.positions(mesh.cp.rank), range(setup.config.heads),
                     setup.recipe.seed, self.number, self.core, self.experts)

    def microbatches(self, array):
        """This rank's part of an array (B, s) of the global batch: a list of (b, s_c), one for each micro-batch."""
        places = map(self.place_of, range(self.setup.microbatches))
        parts = [array[place.sequences.start:place.sequences.stop][:, list(place.positions)] for place in places]
        return [to_device(part, self.like) for part in parts]

    # -- a step -------------------------------------------------------------------------------------------------------
    def step(self):
        """Train on the next batch: forward, backward, update. -> `Step`, the same on every rank"""
        return self.update(self.gradients())

    def gradients(self):
        """Forward and backward of the next batch; then the rank has its part of all sums. -> its part of the loss"""
        setup, mesh = self.setup, self.mesh
        tokens, targets = map(self.microbatches, setup.batch(self.data, self.number))
        valid = self._valid(targets)
        scale = (self.scale.value if self.scale else 1.0) / valid

        def loss(logits, k):
            with self.comm.phase("loss"):
                total, _, saved = vocabulary.cross_entropy(logits, targets[k], setup.config.vocabulary, mesh.tp)
                return float(to_host(total)), vocabulary.cross_entropy_backward(scale, saved)

        self.weights.begin()
        for stage in self.stages.values():
            stage.scale, stage.routed[:] = scale, []
        with np.errstate(over="ignore", invalid="ignore"):
            done = execute(setup.pipeline, mesh.pp, self.stages, tokens, loss, numbered=True)
            for zero in self.zeros:
                zero.finish()
            self.tie()
        return (done.loss + routers.balance(setup, mesh, self.stages)) / valid

    def update(self, loss):
        """Unscale, clip, Adam; a step that overflowed changes nothing but the loss scale. -> `Step`"""
        mesh, recipe, scale = self.mesh, self.setup.recipe, self.scale.value if self.scale else 1.0
        skipped = self.scale is not None and self.overflowed()
        if self.scale is not None:
            self.scale = self.scale.after(skipped)
        norm = None if skipped else global_norm(self.counted(), (mesh.tp, mesh.dp_cp, mesh.pp)) / scale
        for zero in self.zeros:
            if skipped:
                zero.skip()
            else:
                zero.step(clip_factor(norm, recipe.clip) / scale)
        if not skipped:
            routers.update_biases(self.setup, mesh, self.stages, self.buffers)
        self.number += 1
        for comm in (mesh.dp_cp, mesh.pp):                # tp ranks have the same loss, stages but the last none
            with self.comm.phase(LOSS):
                loss = float(all_reduce(loss, comm, algorithm="doubling"))
        return Step(loss, norm, skipped, scale)

    def _valid(self, targets):
        """How many targets count, over all ranks."""
        with self.comm.phase(COUNT):
            mine = sum(int(to_host((t != IGNORED).sum())) for t in targets)
            return max(int(all_reduce(mine, self.mesh.dp_cp, algorithm="doubling")), 1)

    def finish(self, gradients):
        """Sum what are only addends, over tp."""
        with self.comm.phase("finish"):
            return shards.finish(gradients, self.mesh.tp, self.sharing, self.setup.sequence_parallel)

    def tie(self):
        """Add up the gradients of the two copies of a tied table: what replicas have summed already, shard by shard."""
        placement, dense = self.setup.pipeline.placement, self.zeros[0]
        if self.setup.config.tied and placement[0] != placement[-1]:           # else one rank has the only copy
            ends = {stage: {TABLE: dense.sums("tokens")} for stage in self.stages if stage in (0, len(placement) - 1)}
            add_tied(self.setup.pipeline, self.mesh.pp, ends, [(TABLE, TABLE)])
            for named in ends.values():
                dense.sums("tokens")[...] = named[TABLE]

    # -- over all ranks -----------------------------------------------------------------------------------------------
    def overflowed(self):
        """Whether a gradient of any rank is inf or nan."""
        found = overflow(zero.sums(key) for zero in self.zeros for key in zero.units)
        for comm in (self.mesh.tp, self.mesh.dp_cp, self.mesh.pp):
            with self.comm.phase(OVERFLOW):
                found = all_reduce(found, comm, op="max", algorithm="doubling")
        return bool(to_host(found)[0])

    def counted(self):
        """What this rank counts of the gradients, for a norm over all ranks: flat arrays, 0 where it does not."""
        return [array_namespace(flags).where(flags, zero.sums(key), 0) for (zero, key), flags in self.flags.items()]

    def _flags(self, zero, key):
        """Which elements of its part of a unit this rank counts: bool, flat."""
        unit, mesh = zero.units[key], self.mesh
        flags = unit.blank(bool, zero.masters[key])
        replica = zero.stage == 0 and zero.comm.rank > 0
        copy = key == "tokens" and self.setup.config.tied and 0 not in self.stages
        if not replica and not copy:
            for view in counted(unit.views(flags), self.setup.config, mesh.tp.rank, mesh.tp.size):
                view[...] = True
        return flags[unit.own(zero.rank)][:unit.held(zero.rank)]

    # -- what it holds, for comparing and for checkpoints: see pieces.py, checkpoint.py -------------------------------
    def held(self, kind):
        """What this rank has of the gradients or of "parameter", "m" or "v": {name: (start, flat host array)}.

        Parameters are the master copies; gradients those of the last `gradients`, before they are clipped. Of what all
        replicas have the first one speaks.
        """
        found = {}
        for zero in self.zeros:
            if zero.stage > 0 or zero.comm.rank == 0:
                sums = zero.shards() if kind == "gradients" else {}
                for name, part in zero.state().items():
                    found[name] = part.start, to_host(sums[name] if sums else getattr(part, kind))
        return found

    def pieces(self):
        """All that a checkpoint wants of this rank: {"kind/name": (start, flat host array)}."""
        found = {f"{kind}/{name}": piece for kind in ("parameter", "m", "v") for name, piece in self.held(kind).items()}
        return found | {f"buffer/{name}": (0, to_host(b)) for name, b in self.buffers.items()}

    def load(self, state, manifest):
        """Go on from whole arrays: {"parameter": {name: host array}, "m": ..., "v": ..., "buffer": ...}."""
        cut = {kind: self.cut(state[kind]) for kind in ("parameter", "m", "v")}
        for zero in self.zeros:
            mine = {name: part._replace(**{kind: arrays[name].reshape(-1)[part.start:part.stop]
                                           for kind, arrays in cut.items()})
                    for name, part in zero.ranges().items()}
            zero.load(mine, manifest["steps"])
        for name, bias in self.buffers.items():
            bias[...] = to_device(state["buffer"][name], self.like)
        self.number = manifest["number"]
        self.scale = None if manifest["scale"] is None else LossScale(**manifest["scale"])

    @property
    def steps(self):
        """How often the optimizer has stepped: skipped steps do not count."""
        return self.zeros[0].steps
