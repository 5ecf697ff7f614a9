"""The meter: live bytes by kind, counted on the arrays that are held.

    meter = Meter(parameters=parameters, gradients=gradients, saved=kept)      containers: dicts, lists, tuples, arrays
    kept[3] = saved                                                            the run fills and empties them ...
    meter.sample()                                                             ... and is looked at, now
    meter.live["saved"], meter.peak["saved"], meter.total_peak

A sample walks the containers down to the arrays. What counts is the memory behind an array: two views of one count
once, and a small view that keeps a large array alive counts as the large one. Memory that two kinds hold counts as the
first of them in the order given, so that weights that a layer remembers for its backward are parameters, not saved
activations. A NamedTuple may say that what is in it is of another kind, by a class attribute `kind` (the mean and scale
of a norm are "statistics"). Anything that is no container and no array weighs nothing: numbers, functions, ranges.
"""

from refimpl.arrays import allocation


class Meter:
    """Live bytes by kind, now and at their most.

    kinds    by name what each kind holds: an array, or a container of anything; looked at anew in every sample

    live          bytes by kind at the last sample
    peak          bytes by kind, each at its own largest sample
    total_peak    largest sum over the kinds; at_peak: bytes by kind then
    """

    def __init__(self, **kinds):
        self.kinds = kinds
        self.live, self.peak, self.at_peak, self.total_peak = {}, {}, {}, 0

    def sample(self):
        """Look at what is held now.  ->  bytes by kind"""
        self.live = held_bytes(**self.kinds)
        for kind, size in self.live.items():
            self.peak[kind] = max(self.peak.get(kind, 0), size)
        total = sum(self.live.values())
        if total > self.total_peak or not self.at_peak:
            self.total_peak, self.at_peak = total, self.live
        return self.live


def held_bytes(**kinds):
    """Bytes of the arrays in each container, by kind, each piece of memory once.

    kinds    by name an array, or a container of anything; what an earlier one holds is not counted for a later one
    """
    seen, sizes = set(), dict.fromkeys(kinds, 0)
    for kind, things in kinds.items():
        for found, (address, size) in _allocations(things, kind):
            if size and address not in seen:
                seen.add(address)
                sizes[found] = sizes.get(found, 0) + size
    return sizes


def _allocations(thing, kind):
    """(kind, allocation) of all arrays in nested containers."""
    if isinstance(thing, dict):
        thing = thing.values()
    elif isinstance(thing, tuple):
        kind = getattr(type(thing), "kind", kind)
    elif not isinstance(thing, list):
        found = allocation(thing)
        if found is not None:
            yield kind, found
        return
    for part in thing:
        yield from _allocations(part, kind)
