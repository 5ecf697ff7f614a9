"""Layouts that a learner designs: whether they fit, and how near they come to par.

    a layout {"dp": 16, "tp": 8, ...}  ->  multiplies to the GPUs?  divides the model?  fits the memory?
                                           experts inside a node, if so asked?  at most 10% slower than par?

Memory is cost/footprint.py, time cost/step.py; par is the fastest that fits of a small search, a few hundred layouts.

    wrong shape     wrong product     ep multiplied     does not divide     does not fit     across nodes     too slow
"""

import itertools
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache

from refimpl.cost.footprint import KINDS, worst_stage
from refimpl.cost.hardware import find as find_gpu
from refimpl.cost.models import find as find_model
from refimpl.cost.step import step
from refimpl.cost.training import Training
from refimpl.course.exercises.finding import Wrong
from refimpl.layout import Layout

AXES = ("dp", "tp", "pp", "ep")
KEYS = (*AXES, "expert_tp", "zero", "micro_batch", "chunks", "recompute", "sequence_parallel")
SLOWER = 1.10                              # than par, at most


@dataclass(frozen=True)
class Task:
    """What is to be laid out. local_experts: every expert-parallel group inside one NVLink domain"""

    model: str
    gpu: str
    gpus: int
    batch: int
    sequence: int
    flash: bool = False
    local_experts: bool = False

    @property
    def words(self):
        """In words."""
        return f"{self.model} on {self.gpus:,} {self.gpu}, {self.batch:,} sequences of {self.sequence:,}"


def training_of(task, dp=1, tp=1, pp=1, ep=1, expert_tp=None, zero=0, micro_batch=1, chunks=1, recompute="none",
                sequence_parallel=False):
    """The `Training` of a layout. ValueError for what does not divide."""
    layout = Layout(dp=dp, tp=tp, pp=pp, ep=ep, expert_tp=expert_tp, node_size=find_gpu(task.gpu).node_size)
    if task.batch % (dp * micro_batch):
        raise ValueError(f"{task.batch} sequences do not divide into micro-batches of {micro_batch} on dp={dp} ranks")
    return Training(find_model(task.model), layout, task.sequence, micro_batch, task.batch // (dp * micro_batch),
                    "interleaved" if chunks > 1 else "1f1b", chunks, sequence_parallel, zero=zero, recompute=recompute,
                    flash=task.flash, grad_dtype="float32")


def judge_design(task, found):
    """Raise `Wrong` unless this is a layout that fits and is fast enough."""
    case = f"{task.words}: "
    if not isinstance(found, dict):
        raise Wrong("wrong shape", "what is returned has the wrong form",
                    f'{case}expected a dict such as {{"dp": 16, "tp": 8, "pp": 8}}; it is {found!r}.')
    for key in found:
        if key not in KEYS:
            near = get_close_matches(str(key), KEYS, n=1, cutoff=0.0)[0]
            raise Wrong("wrong shape", f"there is no choice {key!r}",
                        f"{case}nearest {near!r}; there are {', '.join(KEYS)}.")
    check_product(task, case, found)
    try:
        training = training_of(task, **found)
    except (TypeError, ValueError) as error:
        raise Wrong("does not divide", "this layout cannot be made", f"{case}{error}.") from None
    gpu = find_gpu(task.gpu)
    check_memory(case, training, gpu)
    if task.local_experts:
        check_nodes(case, training.layout, gpu)
    mine, best = step(training, gpu), par(task)
    if mine.seconds > SLOWER * best:
        losses = {part: seconds for part, seconds in mine.breakdown.items() if part not in ("products", "moved")}
        largest = sorted(losses, key=losses.get, reverse=True)[:3]
        raise Wrong("too slow", f"a step takes {mine.seconds:.3g} s, par is {best:.3g} s",
                    f"{case}{SLOWER - 1:.0%} more than par would do; MFU {mine.mfu:.1%}. Beside the work itself: "
                    + ", ".join(f"{part} {losses[part]:.2f} s" for part in largest) + ".")


def check_product(task, case, found):
    """As many ranks as GPUs; ep arranges the same ranks anew."""
    sizes = {axis: found.get(axis, 1) for axis in AXES}
    world = sizes["dp"] * sizes["tp"] * sizes["pp"]
    if world == task.gpus:
        return
    words = " x ".join(f"{axis} {sizes[axis]}" for axis in ("dp", "tp", "pp"))
    if sizes["ep"] > 1 and world * sizes["ep"] == task.gpus:
        raise Wrong("ep multiplied", "ep was counted as a factor of the GPUs",
                    f"{case}{words} = {world}; with ep {sizes['ep']} it would be {task.gpus}, but expert parallelism "
                    "arranges the same ranks anew.")
    raise Wrong("wrong product", f"the layout has {world} ranks, there are {task.gpus} GPUs",
                f"{case}{words} = {world}.")


def check_memory(case, training, gpu):
    """The fullest GPU has room."""
    lines = worst_stage(training, gpu)
    held = {kind: sum(line.bytes for line in lines if line.kind == kind) for kind in KINDS}
    total = sum(held.values())
    if total > gpu.memory:
        largest = sorted(held, key=held.get, reverse=True)[:3]
        raise Wrong("does not fit", f"the fullest GPU would hold {total / 1e9:.1f} GB of {gpu.memory / 1e9:.1f}",
                    case + ", ".join(f"{kind} {held[kind] / 1e9:.1f} GB" for kind in largest) + ".")


def check_nodes(case, layout, gpu):
    """Every expert-parallel group inside one domain."""
    for rank in range(layout.world):
        group = layout.group("ep", rank)
        domains = {other // gpu.domain_size for other in group}
        if len(domains) > 1:
            raise Wrong("across nodes", f"an expert-parallel group is on {len(domains)} nodes",
                        f"{case}ep={layout.ep} with expert_tp={layout.expert_tp}: the group of rank {rank} is "
                        f"[{', '.join(map(str, group[:3]))}, ..., {group[-1]}], and a node has {gpu.domain_size} GPUs.")


GRID = {"tp": (1, 2, 4, 8), "pp": (1, 2, 4, 8, 16), "ep": (1,), "expert_tp": (None,), "zero": (1,),
        "micro_batch": (1, 2), "chunks": (1, 2, 3, 4, 6), "recompute": ("none", "selective")}


@cache
def par(task):
    """Seconds of the fastest layout of a small search that fits."""
    return step(training_of(task, **fastest(task)), find_gpu(task.gpu)).seconds


@cache
def fastest(task):
    """That layout, as a learner would return it."""
    gpu, grid, found = find_gpu(task.gpu), dict(GRID), {}
    if find_model(task.model).experts:
        grid |= {"ep": (1, 2, 4, 8, 16, 32, 64), "expert_tp": (1,), "chunks": (1, 2, 5), "recompute": ("none",)}
    if task.local_experts:
        grid["ep"] = tuple(ep for ep in grid["ep"] if ep <= gpu.domain_size)
    for values in itertools.product(*grid.values()):
        choice = dict(zip(grid, values))
        if task.gpus % (choice["tp"] * choice["pp"]) or choice["chunks"] > 1 and choice["pp"] == 1:
            continue
        choice |= {"dp": task.gpus // (choice["tp"] * choice["pp"]), "sequence_parallel": choice["tp"] > 1}
        try:
            training = training_of(task, **choice)
        except ValueError:
            continue
        if sum(line.bytes for line in worst_stage(training, gpu)) <= gpu.memory:
            found[values] = step(training, gpu).seconds, choice
    return min(found.values(), key=lambda pair: pair[0])[1]
