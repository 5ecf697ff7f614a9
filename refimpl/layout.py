"""Layout: which rank does what. A rank is a number; its coordinates along tp, cp, dp and pp are that number's digits.

    Layout(dp=2, pp=2, tp=2)              tp    groups [0,1] [2,3] [4,5] [6,7]
                                          dp    groups [0,2] [1,3] [4,6] [5,7]
      pp 0   dp 0 [0 1]  dp 1 [2 3]       pp    groups [0,4] [1,5] [2,6] [3,7]
      pp 1   dp 0 [4 5]  dp 1 [6 7]
                   tp ->                  world = dp x pp x cp x tp

`order` says which digit changes fastest, fastest first; by default rank = ((pp * DP + dp) * CP + cp) * TP + tp. The
faster an axis changes, the closer its ranks sit: on nodes of 8 GPUs "tp-cp-dp-pp" sends the pipeline across nodes,
"tp-cp-pp-dp" the gradients. Both occur in Megatron-LM, whose parallel_state has ep among the axes ("tp-cp-ep-dp-pp").

Experts live on the same ranks, dealt out anew inside each pipeline stage: ep never multiplies the world.

    expert_tp = tp   a line of ranks over cp (fastest) and dp       ep: consecutive blocks of the line
    expert_tp = 1    a line of ranks over tp, cp and dp             expert_dp: the same place in every block

Nothing here communicates: this is arithmetic, and costs no more than the length of what it returns.
"""

import difflib
import operator
import re
from dataclasses import dataclass

AXES = ("tp", "cp", "dp", "pp")
GROUPS = (*AXES, "dp_cp", "ep", "expert_tp", "expert_dp")


@dataclass(frozen=True)
class Layout:
    """Sizes of the parallel axes, and from them every rank's place and groups. Frozen and hashable.

    dp pp cp tp   ranks along each axis, at least 1; their product is the world
    ep            expert-parallel size: divides dp x cp, or dp x cp x tp where expert_tp is 1
    expert_tp     tensor-parallel size of an expert: tp (None means that) or 1
    order         the four axes, fastest first, joined by "-"
    node_size     ranks per node, at least 1; node k has ranks k * node_size and up
    Raises ValueError, which names the value and the nearest that works.
    """

    dp: int = 1
    pp: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    expert_tp: int | None = None
    order: str = "tp-cp-dp-pp"
    node_size: int = 8

    def __post_init__(self):
        for name in (*AXES, "ep", "node_size"):
            self._set(name, _positive(name, getattr(self, name)))
        self._set("expert_tp", self.tp if self.expert_tp is None else _positive("expert_tp", self.expert_tp))
        if self.expert_tp not in (1, self.tp):
            nearest = min(1, self.tp, key=lambda size: abs(size - self.expert_tp))
            raise ValueError(f"expert_tp={self.expert_tp}: expected 1 or tp={self.tp}; nearest {nearest}")
        if not isinstance(self.order, str) or sorted(self.order.split("-")) != sorted(AXES):
            named = dict.fromkeys([*re.findall("|".join(AXES), str(self.order)), *AXES])      # the missing ones go last
            raise ValueError(f"order={self.order!r}: expected tp, cp, dp and pp, fastest first, joined by '-'; "
                             f"nearest {'-'.join(named)!r}")
        axes = self._expert_axes
        length = self._length(axes)
        if length % self.ep:
            ways = ", ".join(str(d) for d in range(1, length + 1) if length % d == 0)
            raise ValueError(f"ep={self.ep} does not divide {' x '.join(axes)} = {length}, the ranks that share the "
                             f"experts where expert_tp={self.expert_tp}; ep may be one of {ways}")

    def _set(self, name, value):
        object.__setattr__(self, name, value)                      # the one way to normalise a field of a frozen class

    # Sizes.

    @property
    def world(self):
        """Number of ranks: dp * pp * cp * tp."""
        return self._length(AXES)

    def size(self, name):
        """Ranks in each of the groups called `name` (one of GROUPS)."""
        return len(self.group(name, 0))

    # A rank and its coordinates.

    def coordinates(self, rank):
        """The place of a rank in 0..world-1 along each axis, as a dict: {"tp": .., "cp": .., "dp": .., "pp": ..}."""
        _below("rank", rank, self.world)
        return {axis: rank // stride % getattr(self, axis) for axis, stride in self._strides.items()}

    def rank(self, tp=0, cp=0, dp=0, pp=0):
        """The rank at these coordinates, each in 0..size of its axis - 1; the inverse of `coordinates`."""
        place = {"tp": tp, "cp": cp, "dp": dp, "pp": pp}
        for axis, index in place.items():
            _below(f"{axis} coordinate", index, getattr(self, axis))
        return sum(index * self._strides[axis] for axis, index in place.items())

    # Groups.

    def groups(self, name):
        """All groups called `name`, as lists of ranks, sorted by their first rank; together every rank once.

        name   tp cp dp pp     ranks that differ in this coordinate only, by that coordinate
               dp_cp           ranks that differ in cp (fastest) and dp: who shares, and so sums, a dense gradient
               ep              ranks that hold different experts between them: tokens travel here
               expert_tp       ranks that share one expert's matrices
               expert_dp       ranks with the same piece of the same experts, which sum its gradient
        """
        _known(name)
        axes = self._axes(name)
        starts = (r for r in range(self.world) if not any(self.coordinates(r)[axis] for axis in axes))
        return sorted(group for r in starts for group in self._cut(name, self._line(axes, r)))

    def group(self, name, rank):
        """The one of `groups(name)` that contains this rank (0..world-1), in the same order."""
        _known(name)
        _below("rank", rank, self.world)
        return next(group for group in self._cut(name, self._line(self._axes(name), rank)) if rank in group)

    # Nodes.

    def node(self, rank):
        """The node that a rank in 0..world-1 runs on: rank // node_size."""
        _below("rank", rank, self.world)
        return rank // self.node_size

    def node_crossings(self, name):
        """For each of `groups(name)`: how many links of the ring through it, last to first included, leave a node.

        0 when the group stays inside one node; a group of one rank has no links.
        """
        nodes = [[self.node(rank) for rank in group] for group in self.groups(name)]
        return [sum(here != there for here, there in zip(group, group[1:] + group[:1])) for group in nodes]

    def crosses_nodes(self, name):
        """True if any group called `name` has ranks on more than one node."""
        return any(self.node_crossings(name))

    # The arithmetic behind them.

    @property
    def _strides(self):
        strides, stride = {}, 1
        for axis in self.order.split("-"):
            strides[axis] = stride
            stride *= getattr(self, axis)
        return strides

    @property
    def _expert_axes(self):
        return ("cp", "dp") if self.expert_tp == self.tp else ("tp", "cp", "dp")

    def _axes(self, name):
        """The axes along which the ranks of one group, or of the line it is cut from, differ; fastest first."""
        if name in ("ep", "expert_dp"):
            return self._expert_axes
        if name == "expert_tp":
            return ("tp",)
        return ("cp", "dp") if name == "dp_cp" else (name,)

    def _length(self, axes):
        length = 1
        for axis in axes:
            length *= getattr(self, axis)
        return length

    def _line(self, axes, rank):
        """All ranks that agree with `rank` except along `axes`, the first of these fastest."""
        strides, place = self._strides, self.coordinates(rank)
        line = [rank - sum(place[axis] * strides[axis] for axis in axes)]
        for axis in axes:
            line = [start + k * strides[axis] for k in range(getattr(self, axis)) for start in line]
        return line

    def _cut(self, name, line):
        if name == "ep":
            return [line[start:start + self.ep] for start in range(0, len(line), self.ep)]
        if name == "expert_dp":
            return [line[place::self.ep] for place in range(self.ep)]
        if name == "expert_tp" and self.expert_tp == 1:
            return [[rank] for rank in line]
        return [line]


def _positive(name, value):
    size = _whole(value)
    if size is None or size < 1:
        raise ValueError(f"{name}={value!r}: expected a whole number of ranks, 1 or more; nearest {_clamp(value, 1)}")
    return size


def _below(name, index, size):
    whole = _whole(index)
    if whole is None or not 0 <= whole < size:
        raise ValueError(f"{name} {index!r}: expected 0..{size - 1}; nearest {_clamp(index, 0, size - 1)}")


def _known(name):
    if name not in GROUPS:
        nearest = difflib.get_close_matches(str(name), GROUPS, n=1, cutoff=0.0)[0]
        raise ValueError(f"group {name!r}: expected one of {', '.join(GROUPS)}; nearest {nearest!r}")


def _whole(value):
    """The integer that value is, NumPy's included; None for 2.0, "2" and True."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _clamp(value, low, high=None):
    try:
        nearest = max(low, round(float(value)))
    except (TypeError, ValueError, OverflowError):
        nearest = low
    return nearest if high is None else min(nearest, high)
