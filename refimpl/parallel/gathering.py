"""The parameters' half of ZeRO: from shards to whole units, before they are used.

    stages 1, 2    step:  shard r --update--> shard r --all-gather--> every rank's whole unit, which stays
    stage 3        use:   shard r ------------------- all-gather--> whole unit --use--> freed

    stage 3, forward      gather 0 | gather 1 | gather 2 |            the next unit comes while this one computes:
                                   | compute 0| compute 1| compute 2  T_0 + sum max(c_u, T_u+1) + c_last

A rank sends all shards but that of its right neighbour: (N-1)/N of the unit, each time. All gathering is done in the
background, in the order of the calls, which is the same on every rank. (Rajbhandari et al. 2020, sections 5.3, 7.2.2.)
"""

from refimpl.collectives import all_gather
from refimpl.parallel.units import check_key


class Parameters:
    """What a rank holds of the units' parameters.

    units    {key: Unit}        comm    the ranks that share each unit        stage    0 to 3

    shards    {key: (shard,)} the rank's own; in stages 0 to 2 a view of
    whole     {key: (padded,)} whole units: resident, or, in stage 3, those that are gathered or on their way
    """

    def __init__(self, units, comm, stage):
        self.units, self.comm, self.stage = units, comm, stage
        self.shards, self.whole, self.coming = {}, {}, {}                # coming: requests of gathers not waited for

    def hold(self, key, flat):
        """Begin with these: flat (padded,), the same on every rank. In stage 3 a copy of the shard is kept."""
        own = flat[self.units[key].own(self.comm.rank)] if self.stage else flat
        if self.stage < 3:
            self.whole[key] = flat
        self.shards[key] = own.copy() if self.stage == 3 else own

    def prefetch(self, key):
        """Stage 3: start to gather a unit that is neither here nor on its way. ValueError for one that there is not."""
        check_key(key, self.units)
        if self.stage == 3 and key not in self.whole:
            shard = self.shards[key]
            self.whole[key] = self.units[key].blank(shard.dtype, shard)
            self._gather(key)

    def get(self, key):
        """The whole unit by parameter: dict of views; waits for the unit if it is on its way."""
        self.prefetch(key)
        self.settle(key)
        return self.units[key].views(self.whole[key])

    def release(self, key):
        """Stage 3: let the whole unit go. Views of it that somebody keeps would keep its memory."""
        if self.stage == 3:
            self.settle(key)
            self.whole.pop(key, None)

    def publish(self, key):
        """The shard has changed: stages 1 and 2 start to gather it, stage 3 forgets a whole unit, now out of date."""
        if self.stage == 3:
            self.release(key)
        elif self.stage:
            self._gather(key)

    def settle(self, key):
        """Wait for a gather that was started."""
        if key in self.coming:
            self.coming.pop(key).wait()

    def _gather(self, key):
        self.settle(key)
        shard, whole = self.shards[key], self.whole[key]

        def work(twin):
            with twin.collective("all_gather", unit=str(key), dtype=whole.dtype.str, shape=whole.shape):
                all_gather(shard, twin, out=whole, algorithm="ring")

        with self.comm.phase("zero gather"):
            self.coming[key] = self.comm.background(work)
