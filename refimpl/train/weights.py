"""Where a rank's weights come from and its gradients go: the replicas' part of a training step, unit by unit.

    part of the model    "embedding"               "blocks.0" ...     "head"
    units it works with  "tokens", "positions"     its own            its own; tied, "tokens" as well

    with weights.lent("blocks.3") as parameters:       ZeRO 3: gathered here, and let go at the end of the block
        y, saved = block.forward(x, parameters, ...)
        saved = weights.put_away(saved)                what the layer remembers of them is only where they were ...
    ...
    with weights.lent("blocks.3") as parameters:       gathered once more
        dx, pending = block.backward_input(dy, weights.fetched(saved))                        ... until backward
    weights.hand_over("blocks.3", gradients)           summed over replicas, in the background

A layer keeps its weights for backward, by reference. That costs nothing while they stay, but under ZeRO 3 one reference
would keep the whole gathered unit alive, and nothing would have been saved.

Each parameter takes part in one reduction a step, after its last micro-batch (stages 2 and 3: in one a micro-batch).
What is only an addend over tp, norms of a shard of the sequence and shared heads, is summed over tp just before.
Experts have other replicas than all else, so each of the two kinds has a `Zero` of its own; a unit may lie in both.
"""

from contextlib import contextmanager
from typing import NamedTuple

from refimpl.arrays import address, allocation, array_namespace
from refimpl.parallel import shards

WHOLE = ", whole"                          # what tensor-parallel ranks have alike, in a unit's name


class View(NamedTuple):
    """Stands for a view of a unit that was let go: which one, and where in it."""

    zero: int                              # number of the Zero
    unit: str
    start: int                             # element
    shape: tuple
    strides: tuple


def units_of(names, tp=1):
    """The units of these parameters, {key: [names]}: each layer one, and the ends, with a table that may be tied apart.

    tp    with more than one tensor-parallel rank, what they all have whole makes units of its own: where a ring adds up
          which element first depends on the unit's length, and copies that are to stay equal must have equal lengths
    """
    units = {}
    for name in names:
        first, *rest = name.split(".")
        key = {"blocks": f"blocks.{rest[0]}", "embedding": rest[0]}.get(first, "head")
        units.setdefault(f"{key}{WHOLE}" if tp > 1 and shards.is_whole(name) else key, []).append(name)
    return units


def units_for(part, config):
    """The units that a part of the model may work with."""
    if part == "embedding":
        units = ["tokens", "positions"]
    else:
        units = ["head", "tokens"] if part == "head" and config.tied else [part]
    return [unit + suffix for unit in units for suffix in ("", WHOLE)]


class Weights:
    """The units of one rank, and the sums of their gradients.

    zeros           [`Zero`], of dense parameters and, where there are some, of experts
    parts           of the model that the rank's stages consist of, all together
    microbatches    of a step
    finish          finish(gradients): dict by name with the addends summed over tp
    """

    def __init__(self, zeros, config, parts, microbatches, finish):
        self.zeros, self.config, self.microbatches, self.finish = zeros, config, microbatches, finish
        self.uses = {}
        for part in parts:
            for unit in units_for(part, config):
                self.uses[unit] = self.uses.get(unit, 0) + 1
        self.begin()

    # Parameters

    @contextmanager
    def lent(self, part, prefetch=None):
        """The parameters that a part works with, dict by name, for the duration of the block.

        prefetch    the part that comes next, whose units may come while this one computes
        """
        found = {}
        for zero, unit in self._lying(part):
            found |= zero.parameters(unit)
        for zero, unit in self._lying(prefetch) if prefetch else ():
            zero.prefetch(unit)
        yield found
        for zero, unit in self._lying(part):
            zero.release(unit)

    def put_away(self, saved):
        """`saved` with a `View` in place of every array that lies in a unit which will not stay."""
        gathered = {allocation(flat)[0]: (number, unit, flat) for number, zero in enumerate(self.zeros)
                    if zero.stage == 3 for unit, flat in zero.held.whole.items() if flat.size}

        def away(thing):
            memory = allocation(thing)
            if memory is None or memory[0] not in gathered:
                return thing
            number, unit, flat = gathered[memory[0]]
            return View(number, unit, (address(thing) - address(flat)) // flat.itemsize, thing.shape, thing.strides)

        return replaced(saved, away) if gathered else saved

    def fetched(self, saved):
        """`saved` with the arrays again; their units must be lent."""
        def back(thing):
            if not isinstance(thing, View):
                return thing
            flat = self.zeros[thing.zero].held.whole[thing.unit][thing.start:]
            return array_namespace(flat).lib.stride_tricks.as_strided(flat, thing.shape, thing.strides)

        return replaced(saved, back) if any(zero.stage == 3 for zero in self.zeros) else saved

    # Gradients

    def begin(self):
        """A step begins: all gradients are still to come."""
        self.to_come = {unit: uses * self.microbatches for unit, uses in self.uses.items()}

    def hand_over(self, part, gradients):
        """Take the gradients, by name, of one micro-batch from one part."""
        for unit in units_for(part, self.config):
            self.to_come[unit] -= 1
        for zero, unit in self._lying(part):
            zero.add(unit, {name: gradients[name] for name in zero.units[unit].shapes})
            whole_microbatch = self.to_come[unit] % self.uses[unit] == 0
            if self.to_come[unit] == 0 or zero.stage >= 2 and whole_microbatch:
                self._reduce(zero, unit)

    def _reduce(self, zero, unit):
        mine = zero.unreduced(unit)
        for name, total in self.finish(mine).items():
            if total is not mine[name]:
                mine[name][...] = total
        zero.reduce(unit, {})

    def _lying(self, part):
        return [(zero, unit) for unit in units_for(part, self.config) for zero in self.zeros if unit in zero.units]


def replaced(thing, substitute):
    """A copy of nested tuples, lists and dicts, each leaf (and each `View`) replaced by substitute(leaf)."""
    if isinstance(thing, View) or not isinstance(thing, (tuple, list, dict)):
        return substitute(thing)
    if isinstance(thing, dict):
        return {key: replaced(value, substitute) for key, value in thing.items()}
    parts = [replaced(part, substitute) for part in thing]
    if isinstance(thing, list):
        return parts
    return type(thing)(*parts) if hasattr(thing, "_fields") else tuple(parts)
