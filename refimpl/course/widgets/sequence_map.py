"""A layer's arrays from left to right, and which part of each a rank holds: with and without sequence parallelism.

              x    norm 1  | f |  gathered   q k v   context   out  | g |  x + ...
    rank 0   [##]   [##]          [##]       [#.]     [#.]     [++]        [##]      an array: positions down, features
    rank 1   [##]   [##]          [##]       [.#]     [.#]     [++]        [##]      across; ## held, ++ an addend

    kept for backward, bytes in s b h    10 + 24/t, sequence-parallel 34/t           sent: 4 + 4, then 4 + 6 (t-1)/t

The parts are those of parallel/sequence.py and heads.py; the tests hold them, what is kept and what is sent against a
layer that runs. (Korthikanti et al. 2022, section 4: float16, masks of a byte, attention's core recomputed.)
"""

from typing import NamedTuple

from refimpl.cost import traffic
from refimpl.cost.memory import layer_activations
from refimpl.course.widgets.interactive import Explorer, stops, switch
from refimpl.course.widgets.svg import bars, box, legend, line, picture, text

RANKS = [1, 2, 4, 8]
S, B, H, HEADS = 2048, 1, 12288, 96                                  # a layer of GPT-3 175B
MIB = 2**20


class Array(NamedTuple):
    """One array of a layer.

    name, keeps    in words, and bytes of it that are kept for backward, in s b h, if a rank has all of it
    cut            inside the blocks "features", or "addend": whole, but a sum is missing; None: outside
    gathered       whether f has put it together: then it has all positions, and is not kept
    """

    name: str
    keeps: int
    cut: str | None = None
    gathered: bool = False


LAYER = (
    Array("x", 2), Array("norm 1", 2), Array("all of it", 0, gathered=True), Array("q k v", 6, "features"),
    Array("context", 2, "features"), Array("out", 0, "addend"), Array("x + out", 3), Array("norm 2", 2),
    Array("all of it", 0, gathered=True), Array("hidden", 16, "features"), Array("out", 0, "addend"),
    Array("y", 1))
F, G = (2, 8), (6, 11)                                               # f and g stand before these arrays
WIDE, TALL, GAP, LEFT, TOP = 42, 34, 22, 64, 96                      # pixels of an array, between them, of the margins


def held(array, rank, t, sequence_parallel):
    """The part of an array that a rank has: ((first, last position), (first, last feature)), as shares of 1."""
    band = (rank / t, (rank + 1) / t)
    if array.cut == "features":
        return (0, 1), band
    outside = array.cut is None and not array.gathered
    return (band if sequence_parallel and outside else (0, 1)), (0, 1)


def draw_sequence(t=4, sequence_parallel=True):
    """All ranks' parts along one layer, what they keep and what they send: a `Picture`."""
    if t not in RANKS:
        raise ValueError(f"{t} ranks: here there are 1, 2, 4 or 8")
    keeps = {sp: layer_activations(S, B, H, HEADS, t, sp, recompute="selective") for sp in (False, True)}
    sends = {sp: traffic.tensor_parallel_block(B, S, H, t, rank=0, sequence_parallel=sp) for sp in (False, True)}
    how = "with sequence parallelism" if sequence_parallel else "tensor parallelism alone"
    title = f"One layer on {t} rank{'s' * (t > 1)}, {how}: {keeps[sequence_parallel] / MIB:,.0f} MiB kept on each"
    under = ("f is an all-gather, g a reduce-scatter. Between the blocks a rank has its own positions only."
             if sequence_parallel else
             "f is nothing, g an all-reduce. Between the blocks every rank has all positions, and does the same work.")
    if t == 1:
        under = "One rank has everything: nothing is sent."
    shapes = [text(12, 24, title, 16, bold=True), text(12, 44, under, kind="faint")]
    at = lambda k: LEFT + k * (WIDE + GAP)
    bottom = TOP + t * (TALL + 10)
    for k, array in enumerate(LAYER):
        shapes.append(text(at(k) + WIDE / 2, TOP - 12, array.name, 11, "middle"))
        for rank in range(t):
            shapes.append(one_array(array, rank, t, sequence_parallel, at(k), TOP + rank * (TALL + 10)))
        each = kept(array, t, sequence_parallel)
        shapes.append(text(at(k) + WIDE / 2, bottom + 10, f"{each:.3g}" if each else "", 12, "middle"))
    for k, name in [(k, "f") for k in F] + [(k, "g") for k in G]:
        x, sent = at(k) - GAP / 2, t > 1 and (name == "g" or sequence_parallel)
        shapes.append(line([(x, TOP - 22), (x, bottom - 6)], "purple" if sent else "plain", 3 if sent else 1,
                           None if sent else "3 3"))
        shapes.append(text(x, TOP - 28, name, 13, "middle", bold=True))
    for rank in range(t):
        shapes.append(text(LEFT - 8, TOP + rank * (TALL + 10) + TALL / 2 + 4, f"rank {rank}", 12, "end"))
    total = sum(kept(array, t, sequence_parallel) for array in LAYER)
    shapes.append(text(LEFT - 8, bottom + 10, "keeps", 12, "end", bold=True))
    shapes.append(text(LEFT, bottom + 30, f"bytes on each rank, in units of s b h: together {total:.4g}", 12,
                       kind="faint"))
    shapes.append(legend(12, bottom + 56, [("forward", "a rank's own part"), ("weight", "the same on every rank"),
                                           ("backward", "an addend"), ("purple", "something is sent here")]))
    shapes.append(comparison(t, sequence_parallel, keeps, sends, bottom + 92))
    told = lambda sp: f"{keeps[sp] / MIB:,.0f} MiB kept, {sum(sends[sp].values()) / 1e6:,.0f} million elements sent"
    return picture(840, bottom + 192, *shapes, title=title,
                   words=f"{under} Without sequence parallelism {told(False)}; with it {told(True)}.")


def kept(array, t, sequence_parallel):
    """Bytes of an array that a rank keeps, in s b h."""
    cut = array.cut == "features" or sequence_parallel
    return array.keeps / t if cut else array.keeps


def one_array(array, rank, t, sequence_parallel, x, y):
    """A rank's part of an array, in the outline of the whole."""
    (top, low), (left, right) = held(array, rank, t, sequence_parallel)
    whole = (top, low, left, right) == (0, 1, 0, 1)
    kind = "backward" if array.cut == "addend" and t > 1 else "weight" if whole and t > 1 else "forward"
    return (box(x, y, WIDE, TALL, kind="soft", round=1)
            + box(x + left * WIDE, y + top * TALL, (right - left) * WIDE, (low - top) * TALL, kind=kind, round=1))


def comparison(t, sequence_parallel, keeps, sends, y):
    """Bars: what a rank keeps and sends for one layer of GPT-3, with and without."""
    kind = lambda sp: "forward" if sp == sequence_parallel else "idle"
    names = {False: "tp alone", True: "with sp"}
    memory = [(names[sp], keeps[sp], f"{keeps[sp] / MIB:,.0f} MiB", kind(sp)) for sp in (False, True)]
    unit = B * S * H * (t - 1) / t or 1
    words = lambda sp: " + ".join(f"{sends[sp][phase] / unit:.0f}" for phase in ("forward", "backward"))
    elements = [(names[sp], sum(sends[sp].values()), f"{words(sp)} b s h (t-1)/t" if t > 1 else "nothing", kind(sp))
                for sp in (False, True)]
    longest = layer_activations(S, B, H, HEADS, 1, recompute="selective")
    return (text(12, y, "A rank keeps, of a layer of GPT-3 175B", 13, bold=True)
            + bars(12, y + 12, memory, 200, longest=longest, labels=66)
            + text(440, y, "and sends, forward + backward", 13, bold=True)
            + bars(440, y + 12, elements, 150, longest=10 * B * S * H, labels=66))


def SequenceMap(t=4, sequence_parallel=True):
    """The widget: how many ranks, and whether the sequence is cut between the blocks."""
    return Explorer(draw_sequence, {"t": stops("Tensor-parallel ranks", t, RANKS, "{}".format),
                                    "sequence_parallel": switch("Sequence parallelism", sequence_parallel)},
                    name="sequence-map")
