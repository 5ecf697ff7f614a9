"""The mesh: which GPU holds what, and who talks to whom over which link, for a run cut along four dimensions.

    node 0   [ 0][ 1][ 2][ 3][ 4][ 5][ 6][ 7]        a rank is a number; its digits are its places along tp, cp, dp, pp,
    node 1   [ 8][ 9][10][11][12][13][14][15]        the axis that `order` names first changing fastest

    rank 5   holds some layers, heads, positions, sequences        sends along each axis: bytes / that link's bandwidth

Who is where comes from layout.py, what is sent from cost/step_traffic.py, which the suite holds against what the
trainer really sends, message by message. Seconds here are bytes by bandwidth: no latencies, and nothing overlaps.
"""

from functools import lru_cache

from refimpl.collectives import bounds
from refimpl.cost import models
from refimpl.cost.footprint import stage
from refimpl.cost.seat import Seat
from refimpl.cost.step_traffic import rows, totals
from refimpl.cost.training import Training
from refimpl.course.widgets.alpha_beta_explorer import bytes_words, seconds_words
from refimpl.course.widgets.interactive import Explorer, option, stops, whole
from refimpl.course.widgets.svg import arrow, bars, box, legend, picture, text
from refimpl.layout import Layout

NAME, MODEL = "Llama 3 70B", models.find("llama3-70b")
SEQUENCE, BATCH = 8192, 64                                           # positions; sequences of a step, over all ranks
AXES = {"tp": "tensor parallel", "cp": "context parallel", "dp": "data parallel", "pp": "pipeline"}
GROUP = {"tp": "tp", "cp": "cp", "dp": "dp_cp", "pp": "pp"}          # who a rank sends to in the name of this axis
ORDERS = ["tp-cp-dp-pp", "tp-cp-pp-dp", "dp-cp-tp-pp", "dp-cp-pp-tp", "pp-dp-cp-tp"]
INSIDE, BETWEEN = 450e9, 50e9                                        # bytes a second and GPU, each way: H100, 400 Gb/s
MOST = 64                                                            # ranks
CELL, HIGH = 47, 32                                                  # pixels: of a GPU


def draw_mesh(tp=4, cp=1, dp=2, pp=2, order="tp-cp-dp-pp", node_size=8, rank=5, axis="dp"):
    """All GPUs in their nodes, one rank's group along one axis, what that rank holds and what it sends: a `Picture`.

    tp, cp, dp, pp    sizes    order    fastest first    rank    which GPU to look at    axis    whose group to show
    """
    layout = Layout(dp=dp, pp=pp, cp=cp, tp=tp, order=order, node_size=node_size)
    if layout.world > MOST:
        raise ValueError(f"tp {tp} x cp {cp} x dp {dp} x pp {pp} = {layout.world} ranks: the picture has room for "
                         f"{MOST}; make one of them smaller")
    place, group = layout.coordinates(rank), layout.group(GROUP[axis], rank)
    nodes = len({layout.node(member) for member in group})
    title = f"{layout.world} GPUs in {order}: rank {rank} is at {' '.join(f'{name} {place[name]}' for name in AXES)}"
    also = " (with cp: all that have the same weights)" if axis == "dp" and cp > 1 else ""
    under = (f"Its group along {axis}{also}: ranks {', '.join(map(str, group))}, "
             f"{f'on {nodes} nodes' if nodes > 1 else 'inside one node'}." if len(group) > 1 else
             f"Along {axis} rank {rank} is alone: nothing is sent.")
    shapes = [text(12, 24, title, 16, bold=True), text(12, 44, under, kind="faint")]
    drawn, low = gpus(layout, rank, group, around=axis != "pp")
    held, sent = what_it_holds(layout, rank), what_it_sends(layout, rank)
    kinds = [("purple", f"rank {rank}"), ("forward", f"its group along {axis}; link inside a node"),
             ("backward", "link between nodes")]
    shapes += [drawn, legend(12, low + 8, kinds)]
    y = low + 44
    shapes.append(text(12, y, f"Rank {rank} holds of {NAME}", 14, bold=True))
    shapes += [text(12, y + 24 + 20 * k, line) for k, line in enumerate(held)]
    shapes.append(text(400, y, "and sends in a step; bars: seconds of that link", 14, bold=True))
    rows_ = [(name, seconds, f"{bytes_words(nbytes)}, {link}: {seconds_words(seconds)}" if nbytes else "nothing",
              "backward" if link == "between nodes" else "forward") for name, nbytes, link, seconds in sent]
    shapes.append(bars(400, y + 12, rows_, 230, labels=34))
    told = "; ".join(f"{name} {bytes_words(nbytes)} {link}, {seconds_words(seconds)}" for name, nbytes, link, seconds in
                     sent if nbytes)
    return picture(880, y + 128, *shapes, title=title,
                   words=f"{under} It holds {'; '.join(held)}. It sends in a step: {told or 'nothing'}.")


def gpus(layout, rank, group, around=True):
    """All GPUs, node by node, and the links through `group`, to the first again if `around`: (shapes, their end)."""
    size = layout.node_size
    wide = size * CELL + 16
    columns = 1 << (880 // (wide + 12)).bit_length() - 1
    at = {}
    shapes, nodes = [], -(-layout.world // size)
    for node in range(nodes):
        x, y = 12 + node % columns * (wide + 12), 62 + node // columns * (HIGH + 44)
        shapes += [box(x, y, wide, HIGH + 28), text(x + 8, y + 15, f"node {node}", 11, kind="faint")]
        for k in range(min(size, layout.world - node * size)):
            member = node * size + k
            at[member] = x + 8 + k * CELL + CELL / 2, y + 20 + HIGH / 2
            kind = "purple" if member == rank else "forward" if member in group else "soft"
            place = ", ".join(f"{name} {number}" for name, number in layout.coordinates(member).items())
            shapes.append(box(x + 8 + k * CELL + 2, y + 20, CELL - 4, HIGH, str(member), kind, 13, member == rank,
                              hint=f"rank {member}: {place}"))
    for here, there in zip(group, group[1:] + group[:1] * (around and len(group) > 2)):
        shapes.append(link(at[here], at[there], layout.node(here) != layout.node(there), there == group[0]))
    return "".join(shapes), 62 + -(-nodes // columns) * (HIGH + 44)


def link(start, end, between, back):
    """One link from GPU to GPU; back: the one that closes the ring."""
    (x1, y1), (x2, y2) = start, end
    look = dict(kind="backward" if between else "forward", width=2, dash="5 3" if back else None)
    if y1 == y2:                                                     # in a row: an arc above, below for the way back
        y = y1 + (HIGH / 2 if x2 < x1 else -HIGH / 2)
        return arrow(x1, y, x2, y, bend=4 + 1.2 * min(abs(x2 - x1) / CELL, 8), **look)
    side, edge = (8, HIGH / 2) if y2 > y1 else (-8, -HIGH / 2)
    return arrow(x1 + side, y1 + edge, x2 + side, y2 - edge, bend=0 if x1 != x2 else 4, **look)


@lru_cache(maxsize=256)
def training_of(layout):
    """The run that is drawn, cut like this."""
    return Training(MODEL, layout, SEQUENCE, microbatches=BATCH // layout.dp)


def what_it_holds(layout, rank):
    """What a rank has of the model and of the batch, in lines of words."""
    training, place = training_of(layout), layout.coordinates(rank)
    layers = training.layers_of(place["pp"])
    ends = [name for name, there in (("embedding", training.first(place["pp"])), ("head", training.last(place["pp"])))
            if there]
    heads = MODEL.heads // layout.tp
    share = bounds(BATCH, layout.dp)
    weights = sum(line.bytes for line in stage(training, place["pp"]) if line.kind == "weights")
    return [
        f"layers {layers[0]} to {layers[-1]} of {MODEL.layers}{' and the ' + ' and the '.join(ends) if ends else ''}",
        f"of each the query heads {heads * place['tp']} to {heads * (place['tp'] + 1) - 1} of {MODEL.heads}"
        + (f", 1/{layout.tp} of the MLP" if layout.tp > 1 else ", all of the MLP"),
        f"weights of {bytes_words(weights)}, bfloat16",
        f"sequences {share[place['dp']]} to {share[place['dp'] + 1] - 1} of the step's {BATCH}",
        f"of each the positions {positions_words(layout.cp, place['cp'])}",
    ]


def positions_words(cp, place):
    """Which positions a context-parallel rank has, in words: zigzag."""
    if cp == 1:
        return f"0 to {SEQUENCE - 1}"
    chunk = SEQUENCE // (2 * cp)
    if place == cp - 1:                                              # the two chunks in the middle
        return f"{chunk * place} to {chunk * (place + 2) - 1}"
    return " and ".join(f"{chunk * k} to {chunk * (k + 1) - 1}" for k in (place, 2 * cp - 1 - place))


def what_it_sends(layout, rank):
    """What a rank sends in a step along each axis: [(axis, bytes, which link, seconds)]."""
    seat = Seat(training_of(layout), rank)
    sums, found = totals(rows(seat), key="group"), []
    for axis, group in GROUP.items():
        nbytes = sums.get(axis, (0, 0))[1]
        between = len({layout.node(member) for member in layout.group(group, rank)}) > 1
        found.append((axis, nbytes, "between nodes" if between else "in the node",
                      nbytes / (BETWEEN if between else INSIDE)))
    return found


def MeshExplorer(tp=4, cp=1, dp=2, pp=2, order="tp-cp-dp-pp", node_size=8, rank=5, axis="dp"):
    """The widget: sizes, the order, the nodes, and whose group to look at."""
    powers = lambda name, value, most: stops(name, value, [2**k for k in range(most.bit_length())], "{}".format)
    return Explorer(draw_mesh, {
        "tp": powers("tp", tp, 16), "cp": powers("cp", cp, 8), "dp": powers("dp", dp, 8), "pp": powers("pp", pp, 8),
        "order": option("Order, fastest first", ORDERS, order), "node_size": powers("GPUs a node", node_size, 8),
        "rank": whole("Rank", rank, 0, MOST - 1),
        "axis": option("Along", {f"{name}, {words}": name for name, words in AXES.items()}, axis),
    }, adjust=lambda tp, cp, dp, pp, **_: {"rank": {"max": min(tp * cp * dp * pp, MOST) - 1}}, name="mesh-explorer")
