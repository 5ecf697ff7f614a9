"""ZeRO's partition map: who holds which byte through one step, and what it costs to share.

    rank 0   parameters  [####|....|....|....]       a strip is all elements of the model, layer by layer, cut into N
             gathered    [####|####]                 shards each; its height is bytes of an element, so that area is
             gradients   [####|....|....|....]       memory. What is grey is held by another rank.
             optimizer   [####|....|....|....]

Nothing is drawn from a formula: see partition_run.py.
"""

from refimpl.course.widgets.interactive import Explorer, option, whole
from refimpl.course.widgets.partition_run import (
    COMING,
    EMPTY,
    HERE,
    LEFT,
    MOST,
    OWN,
    SIZE,
    SUM,
    UNITS,
    run_step,
)
from refimpl.course.widgets.svg import bars, box, legend, line, picture, text

STAGES = {"0: nothing is cut": 0, "1: the optimizer": 1, "2: and the gradients": 2, "3: and the parameters": 3}
PSI = UNITS * SIZE                                                   # parameters of the model
KIND = {HERE: "forward", COMING: "purple", EMPTY: "soft", LEFT: "soft", OWN: "backward", SUM: "weight", None: "none"}
STRIPS = (("parameters", 2), ("gathered", 2), ("gradients", 2), ("summing", 2), ("optimizer", 12))
WORDS = {"summing": "on the way", "optimizer": "copy, m, v"}
BYTE, LABELS, WIDE, GAP = 5, 92, 176, 22                             # pixels: a byte, for names, a rank, between them
TOP = 84


def draw_partition(stage=2, N=4, moment=0, micro_batches=1):
    """All ranks' model states at one moment of a step, with what they weigh and what the step sends: a `Picture`.

    stage    0 to 3    N    ranks    moment    0 is before the step
    """
    if stage not in (0, 1, 2, 3) or not 1 <= N <= MOST:
        raise ValueError(f"stage {stage} on {N} ranks: there are stages 0 to 3, here on 1 to {MOST} ranks")
    ran = run_step(stage, N, micro_batches)
    if not 0 <= moment < len(ran.moments):
        raise ValueError(f"moment={moment}: this step has moments 0 to {len(ran.moments) - 1}")
    words, ranks = ran.moments[moment]
    each = [total(holding) / PSI for holding in ranks]
    title = f"ZeRO-{stage} on {N} rank{'s' * (N > 1)}, {words}: {each[0]:.2f} bytes a parameter on each"
    if stage == 0:
        title = title.replace("ZeRO-0", "Plain DP")
    columns = N if N <= 4 else 3
    shapes = [text(12, 24, title, 16, bold=True), text(12, 44, what_happens(stage, words), 13, kind="faint")]
    high = sum(size * BYTE + 4 for _, size in STRIPS) + 24
    for rank, holding in enumerate(ranks):
        x, y = LABELS + rank % columns * (WIDE + GAP), TOP + rank // columns * (high + 16)
        shapes.append(one_rank(holding, rank, x, y, rank % columns == 0))
    low = TOP + (N - 1) // columns * (high + 16) + high
    shapes.append(legend(12, low + 12, [("forward", "held"), ("purple", "for the moment, or on its way"),
                                        ("soft", "held, nothing in it"), ("backward", "own gradient"),
                                        ("weight", "sum of all ranks")], gap=16))
    shapes.append(comparison(stage, N, micro_batches, each[0], low + 46))
    sent = [f"stage {other} sends {sent_bytes(other, N, micro_batches):.2f}" for other in range(4)]
    now = ", ".join(f"{name} {ranks[0].nbytes[name] / PSI:.2f}" for name in ranks[0].nbytes)
    return picture(max(LABELS + columns * (WIDE + GAP), 884), low + 186, *shapes, title=title,
                   words=f"{what_happens(stage, words)} Rank 0 holds, in bytes a parameter: {now}. "
                   f"At most in this step {ran.peak / PSI:.2f}. In a step {', '.join(sent)} bytes a parameter.")


def total(holding):
    """Bytes that a rank holds."""
    return sum(holding.nbytes.values())


def one_rank(holding, rank, x, y, first):
    """The strips of one rank, from (x, y) on; the first of a row of ranks has their names."""
    shapes = [text(x, y, f"rank {rank}", 13, bold=True),
              text(x + WIDE, y, f"{total(holding):,} bytes", 12, "end", kind="faint")]
    y += 8
    for name, size in STRIPS:
        shapes.append(strip(getattr(holding, name), x, y, size * BYTE))
        if first:
            shapes.append(text(x - 8, y + size * BYTE / 2 + 4, WORDS.get(name, name), 12, "end"))
        y += size * BYTE + 4
    middle = lambda u: x + (u + 0.5) * WIDE / UNITS
    shapes += [text(middle(u), y + 8, f"layer {u}", 11, "middle", kind="faint") for u in range(UNITS)]
    return "".join(shapes)


def strip(units, x, y, high):
    """One kind of state: all units, shard by shard; neighbours that are alike are one box."""
    wide, shapes = WIDE / UNITS, [box(x, y, WIDE, high, kind="idle", round=1)]
    for u, shards in enumerate(units):
        step = (wide - 2) / len(shards)
        for k, state in enumerate(shards):
            if state is not None and (k == 0 or shards[k - 1] != state):
                alike = next((n for n in range(k, len(shards)) if shards[n] != state), len(shards)) - k
                shapes.append(box(x + u * wide + 1 + k * step, y, max(step * alike, 1.5), high, kind=KIND[state],
                                  round=1))
        if u:
            shapes.append(line([(x + u * wide, y), (x + u * wide, y + high)], "plain", 1))
    return "".join(shapes)


def what_happens(stage, words):
    """What the ranks do at this moment, in a sentence."""
    if words.startswith("forward"):
        return ("This layer is gathered from all shards, the next one is on its way." if stage == 3
                else "Every rank has all parameters: nothing is sent.")
    if words.startswith("backward"):
        return {0: "The gradient is complete on this rank; after the last micro-batch its all-reduce begins.",
                1: "The gradient is complete on this rank; after the last micro-batch its reduce-scatter begins.",
                2: "The whole gradient is on its way to the shards. Then it is let go.",
                3: "The layer was gathered again. Its gradient is on its way to the shards, then let go."}[stage]
    return {"before the step": "At rest: what a rank holds whatever the batch is.",
            "all gradients are summed": "Every rank has the sums that it needs: those of what it will update.",
            "Adam has stepped": {0: "Every rank has updated everything, all in the same way.",
                                 3: "Every rank has updated its shards. Nobody needs the rest before the next forward.",
                                 }.get(stage, "Every rank has updated its shards; the other parameters are gathered."),
            "ready for the next step": "As before the step, with new numbers."}[words]


def sent_bytes(stage, N, micro_batches):
    """Bytes a parameter that rank 0 sends in a step, counted."""
    return sum(run_step(stage, N, micro_batches).sent.values()) / PSI


def comparison(stage, N, micro_batches, now, y):
    """The four stages: what a rank holds at rest and at most, and what it sends."""
    kind = lambda other: "forward" if other == stage else "idle"
    runs = {other: run_step(other, N, micro_batches) for other in range(4)}
    rest = [(other, total(ran.moments[0].ranks[0]) / PSI, ran.peak / PSI) for other, ran in runs.items()]
    held = [(f"stage {other}", peak, f"{peak:.2f}, at rest {least:.2f}", kind(other)) for other, least, peak in rest]
    sent = [(f"stage {other}", (size := sent_bytes(other, N, micro_batches)), f"{size:.2f}", kind(other))
            for other in range(4)]
    return (text(12, y, "A rank holds at most, bytes a parameter", 13, bold=True)
            + bars(12, y + 12, held, 190, longest=18, labels=66)
            + text(468, y, "and sends in a step, bytes a parameter", 13, bold=True)
            + bars(468, y + 12, sent, 230, labels=66))


def PartitionMap(stage=2, N=4, moment=0, micro_batches=1):
    """The widget: the stage, the ranks, and the moment of the step."""
    for ranks in range(1, MOST + 1):                                 # once, so that no later move has to wait for it
        for other in range(4):
            run_step(other, ranks)
    last = lambda k: len(run_step(0, 1, k).moments) - 1
    return Explorer(draw_partition, {
        "stage": option("Stage", STAGES, stage), "N": whole("Ranks", N, 1, MOST),
        "micro_batches": whole("Micro-batches", micro_batches, 1, 3),
        "moment": whole("Moment", moment, 0, last(micro_batches)),
    }, adjust=lambda stage, N, micro_batches, moment: {"moment": {"max": last(micro_batches)}}, name="partition-map")
