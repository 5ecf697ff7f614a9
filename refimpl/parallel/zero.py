"""ZeRO: data parallelism without holding everything N times. Every rank holds all it needs, and 1/N of the rest.

    bytes a parameter, mixed precision     parameters   gradients   optimizer        sent a step, in psi (N-1)/N
    0  every rank holds all                2            2           12               2            all-reduce
    1  the optimizer is sharded            2            2           12/N             2            reduce, gather
    2  and the gradients                   2            2/N         12/N             k + 1        reduce k times
    3  and the parameters                  2/N          2/N         12/N             3 k          and gather 2 k times

    psi parameters on N ranks, k micro-batches a step

    a step of stage 1, N = 2               rank 0                      rank 1
      backward                             g g g g                     g' g' g' g'
      reduce-scatter                       G G . .                     . . G G            G = g + g'
      Adam on the shard                    w w . .   m v               . . w w   m v
      all-gather                           w w w w                     w w w w

Parameters lie in flat units (units.py): buckets in stages 1 and 2, layers in 3. How they are gathered: gathering.py;
how gradients are summed: reducing.py. Here the two meet the optimizer. Nothing is approximated: Adam treats each number
alone, so a shard's update is the shard of the update.

    zero = Zero(parameters, layers(parameters), mesh.dp_cp, stage=3, adam=adam)
    for key in zero.units:                                        forward, and likewise backward
        w = zero.parameters(key);  zero.prefetch(the next key);  f(x, w);  zero.release(key)
    zero.reduce(key, gradients)                                   in backward, unit by unit
    zero.finish();  factor = clip(zero.shards());  zero.step(factor)

Hybrid sharding (HSDP): `comm` within a node, `replicate` across nodes. The node's sum of a shard is added over nodes,
1/N of the bytes on the slow link; parameters are gathered within the node only.

(Rajbhandari et al. 2020; sections 5 and 7 for the table. Zhao et al. 2023, sections 3.2 and 3.3.2 for units and HSDP.)
"""

from typing import NamedTuple

from refimpl.model.adam import Moments, decays, moments, update
from refimpl.parallel.gathering import Parameters
from refimpl.parallel.reducing import Gradients
from refimpl.parallel.units import Unit
from refimpl.precision import STORED, Precision, narrow, store_, wide


class Held(NamedTuple):
    """What a rank holds of one parameter: elements start..stop-1 of it, flattened, in float32 or wider."""

    shape: tuple                       # of the whole parameter
    start: int
    stop: int
    parameter: object = None           # (stop - start,): the master copy
    m: object = None
    v: object = None


class Zero:
    """The model states of one group of replicas, on one of its ranks.

    parameters    dict by name, the same on every rank; they are copied
    units         {key: [names]} or [[names], ...] (then keys are 0, 1, ...), in the order of their use; each name once
    comm          the replicas: mesh.dp_cp for dense parameters, mesh.expert_dp for experts; with `replicate`, those
                  that share one copy
    stage         0 to 3        adam    `Adam`, the settings
    precision     `Precision` of parameters and gradients; that of the parameters unless given
    replicate     communicator across the copies, for hybrid sharding; None: comm holds the only one
    alignment     of the padded units, a multiple of comm.size; comm.size unless given (in stage 0: 1, no padding)
    ordered, buffers    how reductions are started: see reducing.py

    units         {key: Unit}                steps    how often Adam has stepped
    resident      {"parameters", "gradients", "optimizer"}: containers of all arrays held, for `Meter(**zero.resident)`
    ValueError, before anything is held or sent, for what does not fit.
    """

    def __init__(self, parameters, units, comm, stage, adam, precision=None, replicate=None, alignment=None,
                 ordered=True, buffers=2):
        if stage not in (0, 1, 2, 3):
            raise ValueError(f"stage={stage!r}: expected 0, 1, 2 or 3")
        if buffers < 1:
            raise ValueError(f"buffers={buffers}: a reduction needs 1 or more; nearest 1")
        named = dict(units.items() if hasattr(units, "items") else enumerate(units))
        check_units(parameters, named)
        self.comm, self.stage, self.adam, self.steps = comm, stage, adam, 0
        self.rank = comm.rank if stage else 0                                    # stage 0: one shard, all of the unit
        self.units = {key: Unit({name: parameters[name].shape for name in names}, comm.size if stage else 1, alignment)
                      for key, names in named.items()}
        precision, like = precision or own_precision(parameters), next(iter(parameters.values()))
        self.held = Parameters(self.units, comm, stage)
        self.gradients = Gradients(self.units, comm, stage, precision.stored_gradients, like, replicate, ordered,
                                   buffers)
        self.masters, self.moments = {}, {}
        for key, unit in self.units.items():
            self._hold(key, unit, parameters, precision)
        self.resident = {
            "parameters": [self.held.shards, self.held.whole],
            "gradients": [self.gradients.shards, self.gradients.whole, self.gradients.ready, self.gradients.flying],
            "optimizer": [self.masters, self.moments],
        }

    def _hold(self, key, unit, parameters, precision):
        like = parameters[next(iter(unit.shapes))]
        flat = unit.blank(precision.stored, like)
        for name, view in unit.views(flat).items():
            view[...] = narrow(wide(parameters[name]).astype(precision.master), view.dtype)
        self.held.hold(key, flat)
        if precision.master == precision.stored:
            self.masters[key] = self.held.shards[key]
        else:
            master = self.masters[key] = unit.blank(precision.master, like, self.rank)
            for piece in unit.pieces(self.rank):
                master[piece.inside] = wide(parameters[piece.name]).reshape(-1)[piece.start:piece.stop]
        self.moments[key] = moments(self.masters[key])

    # -- parameters: see gathering.py ---------------------------------------------------------------------------------
    def parameters(self, key):
        """The whole parameters of a unit, dict by name: views, until the unit is released or the step is taken."""
        return self.held.get(key)

    def prefetch(self, key):
        """Stage 3: start to gather a unit that is wanted soon."""
        self.held.prefetch(key)

    def release(self, key):
        """Stage 3: free a unit after use."""
        self.held.release(key)

    # -- gradients: see reducing.py -----------------------------------------------------------------------------------
    def add(self, key, gradients):
        """Add gradients, by name, of a micro-batch that will bring more for this unit: a table's from its first use."""
        self.gradients.add(key, gradients)

    def unreduced(self, key):
        """What was added and not yet reduced, dict by name: views, which may be changed in place."""
        return self.units[key].views(self.gradients.whole[key])

    def reduce(self, key, gradients, last=True):
        """Add the gradients of a unit, by name, and start their sum over ranks in the background.

        last    of this step. Stages 0 and 1 wait for it, stages 2 and 3 sum every micro-batch
        Every rank calls it equally often for each unit; what has no gradient contributes 0.
        """
        self.gradients.reduce(key, gradients, last)

    def finish(self):
        """Wait until all gradients are summed."""
        self.gradients.finish()

    def sums(self, key):
        """What this rank holds of the sums of a unit, after `finish`: flat, a view without the padding."""
        return self.gradients.shards[key][:self.units[key].held(self.rank)]

    def shards(self):
        """The sums that this rank holds, after `finish`: dict by parameter of flat views, without padding.

        In stage 0 each rank has all of them; else each is on one rank of `comm`, and a norm's squares are summed there.
        """
        return {piece.name: self.gradients.shards[key][piece.inside] for key, piece in self._pieces()}

    # -- the step -----------------------------------------------------------------------------------------------------
    def step(self, factor=1.0, adam=None):
        """One step of Adam on the rank's shards; then the new parameters are on their way to all ranks.

        factor    the gradient is multiplied by it: a number or (), to clip and to undo the loss scale
        adam      settings of this step, such as another rate; those of the beginning unless given
        """
        self.finish()
        self.steps += 1
        for key, unit in self.units.items():
            self.held.settle(key)                        # its last gather may still read the shard
            master, (m, v), sums = self.masters[key], self.moments[key], self.gradients.shards[key]
            for name, _, _, inside in unit.pieces(self.rank):
                gradient = (wide(sums[inside]) * factor).astype(master.dtype)
                update(master[inside], gradient, Moments(m[inside], v[inside]), self.steps, adam or self.adam,
                       decays(name))
            self._store(key)
        self.gradients.reset()

    def skip(self):
        """No step: the gradients are forgotten, all else stays as it is. For an overflow; all ranks alike."""
        self.finish()
        self.gradients.reset()

    def _store(self, key):
        store_(self.held.shards[key], self.masters[key])
        self.held.publish(key)

    # -- checkpoints --------------------------------------------------------------------------------------------------
    def ranges(self):
        """Which part of which parameter this rank holds: {name: Held without arrays}."""
        return {piece.name: Held(self.units[key].shapes[piece.name], piece.start, piece.stop)
                for key, piece in self._pieces()}

    def state(self):
        """The same with the arrays: views that the next step changes. Padding is in none."""
        found = self.ranges()
        for key, piece in self._pieces():
            master, (m, v) = self.masters[key], self.moments[key]
            found[piece.name] = found[piece.name]._replace(
                parameter=master[piece.inside], m=m[piece.inside], v=v[piece.inside])
        return found

    def load(self, state, steps):
        """Go on from `state`, as from `state()` of any layout, cut as `ranges()` of this one says, after `steps` steps.

        ValueError, before anything changes, for a parameter that is missing or cut otherwise.
        """
        for name, wanted in self.ranges().items():
            given = state.get(name)
            fits = given is not None and given[:3] == wanted[:3] and all(
                getattr(a, "shape", None) == (wanted.stop - wanted.start,) for a in given[3:])
            if not fits:
                raise ValueError(f"{name}: this rank holds elements {wanted.start}..{wanted.stop - 1} of shape "
                                 f"{wanted.shape}; the state has {'none' if given is None else given[:3]}: "
                                 "cut parameter, m and v as zero.ranges() says")
        self.steps = steps
        for key in self.units:
            self.held.settle(key)
        for key, piece in self._pieces():
            targets = self.masters[key], *self.moments[key]
            for target, source in zip(targets, state[piece.name][3:]):
                target[piece.inside] = source
        for key in self.units:
            self._store(key)

    def _pieces(self):
        return [(key, piece) for key, unit in self.units.items() for piece in unit.pieces(self.rank)]


def own_precision(parameters):
    """The `Precision` of these arrays; ValueError if they have several, or are no floats."""
    names = {stored: name for name, stored in STORED.items()}
    dtypes = {p.dtype.name for p in parameters.values()}
    if len(dtypes) > 1 or not dtypes <= names.keys():
        raise ValueError(f"parameters are stored in {', '.join(sorted(dtypes))}: give precision=Precision(...), to say "
                         f"which of {', '.join(names.values())} they are to have")
    return Precision(names[dtypes.pop()])


def check_units(parameters, units):
    """ValueError unless every parameter is in exactly one unit, and no unit is empty."""
    if not units or not all(units.values()):
        raise ValueError(f"units={units}: expected one or more, with names of parameters in each")
    listed = [name for names in units.values() for name in names]
    for name in listed:
        if name not in parameters:
            raise ValueError(f"units name {name!r}, which is not a parameter; there are {', '.join(parameters)}")
        if listed.count(name) > 1:
            raise ValueError(f"{name!r} is in more than one unit: a tied table is held once, and used twice")
    if missing := [name for name in parameters if name not in listed]:
        raise ValueError(f"{missing[0]!r} is in no unit: every parameter must be in one")
