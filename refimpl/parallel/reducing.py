"""The gradients' half of ZeRO: from whole gradients on every rank to the sum, of which each rank keeps its shard.

    stage 0    add micro-batches | all-reduce once          every rank: the whole sum
    stage 1    add micro-batches | reduce-scatter once      rank r: shard r, in the whole gradient that it has anyway
    stage 2    reduce-scatter each micro-batch | add        rank r: shard r, and nothing else for long
    stage 3    the same, unit by unit of a layer

    backward   | unit 3 | unit 2 | unit 1 | unit 0 |        a unit's reduction runs while backward goes on; at most
    background          | reduce 3 | reduce 2 | ...         `buffers` whole gradients are alive, or backward waits

Sums, not means: the loss is divided by the tokens of all ranks beforehand. A rank sends for each reduction, of n padded
elements, n (N-1)/N to reduce-scatter and twice that to all-reduce. Numbers of 2 bytes do not go round a ring, where
each stop would round again: every rank gets all addends of its shard, adds them in float32, and rounds once. That sends
as much. (Rajbhandari et al. 2020, section 7; two buffers that take turns: DeepSpeed's overlap_comm.)

Which unit is ready first may differ from rank to rank; reductions are started in one order all the same, last unit
first. What comes early waits.
"""

from refimpl.collectives import all_to_all, bounds
from refimpl.collectives.ring import all_gather_
from refimpl.collectives.streamed_ring import reduce_scatter_ as ring_reduce_scatter_
from refimpl.parallel.units import check_key
from refimpl.precision import add_, narrow, wide


class Gradients:
    """What a rank holds of the units' gradients.

    units        {key: Unit}, in the order of their use        comm    the ranks that share each unit    stage    0 to 3
    dtype        of the gradients, as they are added up and sent
    like         an array of the library to use
    replicate    communicator of the ranks with the same shard elsewhere, or None: sums are added over it, too, once
    ordered      start reductions last unit first, whichever is ready; else as called, on all ranks alike: what a
                 pipeline with several stages on a rank wants
    buffers      stages 2 and 3: whole gradients alive at most, of those that were not held back for their turn

    shards    {key: (shard,)} the rank's own sums    whole    {key: (padded,)} where gradients of this rank are added
    """

    def __init__(self, units, comm, stage, dtype, like, replicate=None, ordered=True, buffers=2):
        self.units, self.comm, self.stage, self.replicate = units, comm, stage, replicate
        self.dtype, self.like, self.ordered, self.buffers = dtype, like, ordered, buffers
        self.order = list(reversed(units))
        self.whole = {key: unit.blank(dtype, like) for key, unit in units.items() if stage < 2}
        if stage < 2:
            self.shards = {key: flat[units[key].own(comm.rank)] if stage else flat for key, flat in self.whole.items()}
        else:
            self.shards = {key: unit.blank(dtype, like, comm.rank) for key, unit in units.items()}
        self.ready = {key: [] for key in units}        # whole gradients whose turn has not come
        self.flying = []                               # (key, whole gradient, request): reductions under way
        self._begin()

    def _begin(self):
        self.given, self.turn, self.done = dict.fromkeys(self.units, 0), 0, False

    def add(self, key, gradients):
        """Add gradients, by name, to what the unit has; nothing is sent. A parameter without one has 0."""
        self._check(key, gradients)
        unit = self.units[key]
        if key not in self.whole:
            while len(self.flying) >= self.buffers:
                self._land()
            self.whole[key] = unit.blank(self.dtype, self.like)
        views = unit.views(self.whole[key])
        for name, gradient in gradients.items():
            add_(views[name], gradient)

    def reduce(self, key, gradients, last=True):
        """Add the last gradients of a micro-batch, and start to sum over ranks: stages 0 and 1 after the last one only.

        Every rank calls it as often for each unit, with no gradients where it has none.
        """
        self.add(key, gradients)
        if self.stage >= 2 or last:
            self.given[key] += 1
            self.ready[key].append(self.whole.pop(key) if self.stage >= 2 else self.whole[key])
            if not self.ordered:
                self._start(key)
            while self.ordered and self.ready[self.order[self.turn]]:
                self._start(self.order[self.turn])
                self.turn = (self.turn + 1) % len(self.order)

    def finish(self):
        """Wait until all sums are there. A unit that was reduced less often than others contributes zeros.

        ValueError, before more is sent, for gradients that came after their unit's last reduction: they would be lost.
        """
        if self.done:
            return
        rounds = max([1, *self.given.values()])
        if late := [key for key in self.whole if self.stage >= 2 and self.given[key] == rounds]:
            raise ValueError(f"unit {late[0]!r} was given gradients after its last reduce(): add them before it")
        for key in self.order:
            while self.given[key] < rounds:
                self.reduce(key, {})
        summing = []
        for key in self.order:
            while any(key == other for other, _, _ in self.flying):
                self._land()
            if self.replicate is not None:
                summing.append(self._replicate(key))
        for request in summing:
            request.wait()
        self.done = True

    def reset(self):
        """Forget the sums: the next step begins."""
        for flat in (self.whole if self.stage < 2 else self.shards).values():
            flat[...] = 0
        self._begin()

    # -- one reduction ------------------------------------------------------------------------------------------------
    def _start(self, key):
        flat = self.ready[key].pop(0)
        reduce_ = reduce_scatter_ if self.stage else all_reduce_
        with self.comm.phase("zero reduce"):
            request = self.comm.background(lambda twin: reduce_(flat, twin, key))
        self.flying.append((key, flat, request))

    def _land(self):
        """Wait for the oldest reduction; stages 2 and 3 add its shard to the others and let the whole gradient go."""
        key, _, request = self.flying.pop(0)
        total = request.wait()
        if self.stage >= 2:
            add_(self.shards[key], total)

    def _replicate(self, key):
        with self.replicate.phase("zero replicate"):
            return self.replicate.background(lambda twin: all_reduce_(self.shards[key], twin, key))

    def _check(self, key, gradients):
        check_key(key, self.units)
        if self.done:
            raise ValueError(f"unit {key!r} gets gradients after finish(): take the step, or skip it, first")
        if self.stage < 2 and self.given[key]:
            raise ValueError(f"unit {key!r} gets more gradients after its last of this step: "
                             "say last=False for every micro-batch but the last")
        shapes = self.units[key].shapes
        for name, gradient in gradients.items():
            if name not in shapes:
                raise ValueError(f"{name!r} is not a parameter of unit {key!r}, which has {', '.join(shapes)}")
            if gradient.shape != shapes[name]:
                raise ValueError(f"the gradient of {name!r} has shape {gradient.shape}, expected {shapes[name]}")
            if gradient.dtype.itemsize == 8 and self.shards[key].dtype.itemsize == 2:
                raise ValueError(f"the gradient of {name!r} has dtype {gradient.dtype}, and sums are stored in "
                                 f"{self.shards[key].dtype}; expected that, or float32")


def reduce_scatter_(flat, comm, key):
    """Sum over ranks, in place of chunk r of flat (n,), which is returned; the rest is spoilt.

    Sends n - len(chunk r) elements in N-1 messages.
    """
    with comm.collective("reduce_scatter", unit=str(key), dtype=flat.dtype.str, shape=flat.shape):
        if flat.dtype.itemsize > 2:
            return ring_reduce_scatter_(flat, comm)
        b = bounds(flat.size, comm.size)
        addends = all_to_all([flat[b[k]:b[k + 1]] for k in range(comm.size)], comm)
        own = flat[b[comm.rank]:b[comm.rank + 1]]
        own[...] = narrow(sum(map(wide, addends[1:]), wide(addends[0])), flat.dtype)
        return own


def all_reduce_(flat, comm, key):
    """Sum flat (n,) over ranks, in place.  Sends 2n - len(chunk r) - len(chunk r+1) elements in 2 (N-1) messages."""
    reduce_scatter_(flat, comm, key)
    with comm.collective("all_gather", unit=str(key), dtype=flat.dtype.str, shape=flat.shape):
        return all_gather_(flat, comm)
