"""Every schedule, one file each; here they are registered, once for `build`, the command, the widget and the tests.

To add one: a file with its `Family`, and its name in `FAMILIES`.
"""

from difflib import get_close_matches

from refimpl.pipeline.schedule import PLACEMENTS, Schedule, whole
from refimpl.pipeline.schedules import custom as custom_
from refimpl.pipeline.schedules.dualpipev import DUALPIPEV
from refimpl.pipeline.schedules.gpipe import GPIPE
from refimpl.pipeline.schedules.interleaved import INTERLEAVED
from refimpl.pipeline.schedules.interleaved_zb import INTERLEAVED_ZB
from refimpl.pipeline.schedules.looped_bfs import LOOPED_BFS
from refimpl.pipeline.schedules.one_f_one_b import ONE_F_ONE_B
from refimpl.pipeline.schedules.zb_h1 import ZB_H1
from refimpl.pipeline.schedules.zb_h2 import ZB_H2
from refimpl.pipeline.schedules.zbv import ZBV

FAMILIES = {family.name: family for family in (
    GPIPE, ONE_F_ONE_B, INTERLEAVED, LOOPED_BFS, INTERLEAVED_ZB, ZB_H1, ZB_H2, ZBV, DUALPIPEV)}
NAMES = (*FAMILIES, custom_.NAME)
ABOUT = {**{name: family.about for name, family in FAMILIES.items()}, custom_.NAME: custom_.ABOUT}


def build(name, stages, microbatches, chunks=None, **lists):
    """The schedule `name` for this many pipeline ranks and micro-batches.

    chunks    stages of the model on each rank; None: the schedule's own number, 1, or 2 where chunks are its idea
    lists     of "custom" only: ranks=..., placement=... (see `custom`)
    ValueError for sizes with which there is no such schedule: it says which ones work.
    """
    p, m = whole("stages", stages), whole("microbatches", microbatches)
    v = None if chunks is None else whole("chunks", chunks)
    if name == custom_.NAME:
        return custom_.custom(p, m, v or 1, **lists)
    if name not in FAMILIES:
        near = get_close_matches(str(name).lower().replace("-", "_"), NAMES, n=1, cutoff=0.4)
        raise ValueError(f"there is no schedule {name!r}: "
                         + (f"perhaps {near[0]!r}?" if near else f"there are {', '.join(NAMES)}"))
    if lists:
        raise ValueError(f"{name} makes its own lists: {', '.join(lists)}= is for 'custom'")
    family = FAMILIES[name]
    v = v or family.chunks
    if v != family.chunks and not family.any_chunks:
        several = "interleaved, looped_bfs and interleaved_zb take any number"
        raise ValueError(f"chunks={v}: {name} has {family.chunks} on every rank; {several}")
    if family.limits is not None:
        family.limits(p, m, v)
    rows = [family.row(rank, p, m, v) for rank in range(p)]
    return Schedule(name, p, m, v, PLACEMENTS[family.placement](p, v), rows)
