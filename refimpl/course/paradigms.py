"""The dimensions beside each other: what each cuts, sends, how often, over which link, at what cost.

    compare()    a row for each, with numbers of one run: Llama 3 8B on 8 GPUs, 16 sequences of 4096 tokens a step

Words are here; numbers come from the formulas that the tests hold against counted runs. Lesson 00 shows both.
"""

from difflib import get_close_matches
from functools import cache
from typing import NamedTuple

from refimpl.cost import models
from refimpl.cost.footprint import stage
from refimpl.cost.seat import Seat
from refimpl.cost.step_traffic import rows, totals
from refimpl.cost.training import Training
from refimpl.layout import Layout

SEQUENCE, BATCH, GPUS = 4096, 16, 8
DENSE, MIXTURE = "llama3-8b", "mixtral-8x7b"
STATES = ("weights", "gradients", "optimizer")
INSIDE, BETWEEN = 450e9, 50e9                                        # bytes a second and GPU, each way: H100, 400 Gb/s


class Paradigm(NamedTuple):
    """One way to share the work. key, lesson, and in words: name, need (when one looks for it), idea, cut, sent, often,
    link (why that one); formula: elements that a rank sends; layout, options: the run that its numbers are of."""

    key: str
    lesson: str
    name: str
    need: str
    idea: str
    cut: str
    sent: str
    often: str
    link: str
    formula: str
    layout: dict
    options: dict
    model: str = DENSE


PARADIGMS = (
    Paradigm("dp", "02", "Data parallelism", "the batch takes too long",
             "Every rank has the whole model and its own part of the batch; gradients are summed.",
             "the batch", "gradients, all-reduced", "once a step",
             "any: it hides behind backward", "2 (N-1)/N elements a parameter", {"dp": GPUS}, {}),
    Paradigm("zero", "04", "ZeRO, FSDP", "replicas keep the same thing many times",
             "As data parallelism, but each rank keeps a shard of optimizer, gradients and, in stage 3, weights.",
             "the batch, and model states", "gradients scattered, weights gathered",
             "twice a step; stage 2: m+1 times, 3: 3 m (m micro-batches)",
             "any in stages 1, 2; fast for stage 3",
             "2, m+1 or 3 m times (N-1)/N elements a parameter", {"dp": GPUS}, {"zero": 3}),
    Paradigm("tp", "05", "Tensor parallelism", "the matrices are too large, or a layer too slow",
             "Matrices are cut by columns, then by rows: each rank has some heads and some hidden features.",
             "each matrix", "activations, all-reduced", "four times each layer and micro-batch",
             "the fastest: every product waits", "8 b s h (t-1)/t elements a layer and micro-batch", {"tp": GPUS}, {}),
    Paradigm("sp", "06", "Sequence parallelism", "tensor-parallel ranks keep the same activations",
             "On the same ranks as tensor parallelism: norms and additions, too, each for its own positions.",
             "what tensor parallelism leaves whole", "activations, gathered and scattered",
             "ten times each layer and micro-batch", "that of tensor parallelism",
             "10 b s h (t-1)/t elements a layer and micro-batch", {"tp": GPUS}, {"sequence_parallel": True}),
    Paradigm("cp", "07", "Context parallelism", "a sequence is too long for one GPU",
             "Each rank has some positions of every sequence; keys and values travel, as in ring attention.",
             "each sequence", "keys, values and their gradients", "in each layer and micro-batch",
             "fast; hides behind attention when sequences are long",
             "6 b s h/g (P-1)/P elements a layer and micro-batch", {"cp": GPUS}, {}),
    Paradigm("pp", "08", "Pipelines", "there are too many layers",
             "Each rank has some layers; micro-batches go through them one after the other.",
             "the layers", "activations between neighbours", "once each micro-batch, boundary and direction",
             "any: little is sent, and little waits", "2 b s h elements a micro-batch", {"pp": GPUS}, {}),
    Paradigm("ep", "09", "Mixture of experts", "more parameters, but no more work for a token",
             "Each rank has some experts; every token travels to those that it chose, and back.",
             "the experts of a layer", "tokens, all-to-all", "four times each layer and micro-batch",
             "fast: all ranks talk to all", "4 k b s h (ep-1)/ep elements a layer and micro-batch",
             {"dp": GPUS, "ep": GPUS}, {}, MIXTURE),
)
ALONE = Paradigm("one", "03", "One GPU", "", "Everything in one place.", "nothing", "nothing", "never", "none", "0",
                 {}, {})


class Row(NamedTuple):
    """Numbers of one paradigm: bytes of model states and of all else on the fullest rank, messages and bytes that a
    rank sends in a step, seconds of these bytes inside a node and between nodes."""

    states: int
    others: int
    messages: int
    sent: int
    inside: float
    between: float


@cache
def numbers(key):
    """The `Row` of a paradigm; of "one" GPU, too. ValueError for another key."""
    known = {paradigm.key: paradigm for paradigm in (ALONE, *PARADIGMS)}
    if key not in known:
        near = get_close_matches(str(key), known, n=1, cutoff=0.0)[0]
        raise ValueError(f"there is no paradigm {key!r}: there are {', '.join(known)}; nearest {near!r}")
    paradigm = known[key]
    layout = Layout(**paradigm.layout)
    training = Training(models.find(paradigm.model), layout, SEQUENCE, microbatches=BATCH // layout.dp, flash=True,
                        **paradigm.options)
    lines = [stage(training, rank) for rank in range(layout.pp)]
    fullest = max(lines, key=lambda held: sum(line.bytes for line in held))
    states = sum(line.bytes for line in fullest if line.kind in STATES)
    sent = totals(rows(Seat(training, 1 if layout.world > 1 else 0)))
    nbytes, messages = (sum(pair[k] for pair in sent.values()) for k in (1, 0))
    others = sum(line.bytes for line in fullest) - states
    return Row(states, others, messages, nbytes, nbytes / INSIDE, nbytes / BETWEEN)


def compare():
    """[(Paradigm, Row)] of one GPU and of all paradigms, each alone on 8 GPUs."""
    return [(paradigm, numbers(paradigm.key)) for paradigm in (ALONE, *PARADIGMS)]
