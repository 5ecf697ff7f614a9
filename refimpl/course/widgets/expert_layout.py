"""Does expert parallelism multiply the number of GPUs? All GPUs of a layout, and the experts that each of them has.

    dp 2 x cp 1 x tp 2 x pp 1 = 4 GPUs        ep deals experts out over ranks that are there already:

      node 0  [0: e0 e1][1: e0 e1][2: e2 e3][3: e2 e3]        ep 2, each expert cut over tp
              [0: e0   ][1: e1   ][2: e2   ][3: e3   ]        ep 4, experts whole

Everything is arithmetic of layout.py, which the groups of communicators are made from.
"""

from refimpl.course.widgets.interactive import Explorer, option, whole
from refimpl.course.widgets.svg import box, legend, picture, text
from refimpl.layout import Layout

EXPERTS, MOST, NODE = 16, 64, 8
WIDE, HIGH, LEFT, TOP = 92, 42, 66, 116                              # pixels: a GPU, names, title
SIZES = (1, 2, 4, 8)
CUT, WHOLE = "over tp, as all else", "not at all: expert_tp = 1"
PRESETS = {
    "ep 8 over data-parallel ranks": {"dp": 8, "cp": 1, "tp": 1, "pp": 1, "ep": 8, "cut": CUT, "rank": 0},
    "the same GPUs without ep": {"dp": 8, "cp": 1, "tp": 1, "pp": 1, "ep": 1, "cut": CUT, "rank": 0},
    "tp fills the node, experts cut": {"dp": 4, "cp": 1, "tp": 8, "pp": 1, "ep": 4, "cut": CUT, "rank": 0},
    "tp fills the node, experts whole": {"dp": 4, "cp": 1, "tp": 8, "pp": 1, "ep": 8, "cut": WHOLE, "rank": 0},
    "with a pipeline": {"dp": 4, "cp": 1, "tp": 4, "pp": 2, "ep": 8, "cut": WHOLE, "rank": 0},
}


def layout_of(dp, cp, tp, pp, ep, cut):
    """The `Layout`; ValueError where ep does not fit, or there are too many ranks or too few experts."""
    layout = Layout(dp=dp, pp=pp, cp=cp, tp=tp, ep=ep, expert_tp=tp if cut == CUT else 1, node_size=NODE)
    if layout.world > MOST:
        raise ValueError(f"dp {dp} x cp {cp} x tp {tp} x pp {pp} = {layout.world} GPUs: too many to draw; at most "
                         f"{MOST}")
    if EXPERTS % ep:
        raise ValueError(f"ep={ep} does not divide {EXPERTS} experts")
    return layout


def draw_experts(dp=8, cp=1, tp=1, pp=1, ep=8, cut=CUT, rank=0):
    """All GPUs, their experts, and the groups of one of them: a `Picture`.

    dp cp tp pp ep    sizes    cut    whether experts are cut over tp    rank    the one whose groups are shown
    """
    layout = layout_of(dp, cp, tp, pp, ep, cut)
    rank = min(rank, layout.world - 1)
    group = {name: layout.group(name, rank) for name in ("ep", "expert_tp", "expert_dp")}
    title = f"dp {dp} · cp {cp} · tp {tp} · pp {pp} = {layout.world} GPU{'s' * (layout.world > 1)}; ep {ep} adds none"
    each = EXPERTS // ep
    part = f"1/{layout.expert_tp}" if layout.expert_tp > 1 else "all"
    told = (f"Each GPU has {each} of {EXPERTS} experts of a layer, {part} of their features: "
            f"the weights of {each / layout.expert_tp:g} whole ones.")
    where = crossing(layout)
    same = f"the same experts on {short(group['expert_dp'])}" if len(group["expert_dp"]) > 1 else "no copies"
    mine = f"Rank {rank}: ep group {short(group['ep'])}; {same}"
    mine += f"; other parts of them on {short(group['expert_tp'])}." if layout.expert_tp > 1 else "."
    shapes = [text(12, 24, title, 16, bold=True), text(12, 44, told, 13, kind="faint"),
              text(12, 64, where, 13, kind="faint"), text(12, 84, mine, 13)]
    for r in range(layout.world):
        x, y = LEFT + r % NODE * (WIDE + 4), TOP + r // NODE * (HIGH + 12)
        if r % NODE == 0:
            shapes.append(text(12, y + HIGH / 2 + 5, f"node {r // NODE}", 13, bold=True))
        shapes.append(gpu(layout, r, rank, group, x, y))
    low = TOP + (layout.world - 1) // NODE * (HIGH + 12) + HIGH
    shapes.append(legend(12, low + 28, [("ink", "the rank"), ("forward", "ep: tokens travel"),
                                        ("weight", "expert_dp: gradients are summed"),
                                        ("purple", "expert_tp: other features"), ("soft", "another group")], gap=14))
    columns = min(layout.world, NODE)
    return picture(max(LEFT + columns * (WIDE + 4) + 8, 812), low + 42, *shapes, title=title,
                   words=f"{told} {where} Rank {rank} has experts {numbers(layout, rank)}; its ep group is "
                         f"{short(group['ep'])}, its expert_dp group {short(group['expert_dp'])}.")


def gpu(layout, r, rank, group, x, y):
    """One GPU: its number, its experts, and what it is to the chosen rank."""
    kind = "ink" if r == rank else "soft"
    if r != rank:
        kind = next((kind for name, kind in (("ep", "forward"), ("expert_tp", "purple"), ("expert_dp", "weight"))
                     if r in group[name]), kind)
    on = {"soft": "ink", "ink": "paper"}.get(kind, f"on-{kind}")
    part = f", {layout.group('expert_tp', r).index(r) + 1}/{layout.expert_tp}" if layout.expert_tp > 1 else ""
    return (box(x, y, WIDE, HIGH, kind=kind, hint=f"rank {r}: {places(layout, r)}")
            + text(x + WIDE / 2, y + 17, f"GPU {r}", 12, "middle", True, on)
            + text(x + WIDE / 2, y + 34, f"e{numbers(layout, r)}{part}", 11, "middle", kind=on))


def places(layout, r):
    """A rank's coordinates in words."""
    return ", ".join(f"{axis} {place}" for axis, place in layout.coordinates(r).items())


def numbers(layout, r):
    """The experts of a rank: "0-1"."""
    each, place = EXPERTS // layout.ep, layout.group("ep", r).index(r)
    return f"{each * place}-{each * (place + 1) - 1}" if each > 1 else str(each * place)


def crossing(layout):
    """Whether tokens leave a node, in words."""
    if layout.ep == 1:
        return "Every rank has all experts: no token travels."
    many = layout.crosses_nodes("ep")
    return ("Its ep groups reach over several nodes: tokens cross the slow links." if many
            else "Each ep group is inside one node: tokens stay on its fast links.")


def short(group):
    """Ranks of a group, not too many."""
    shown = ", ".join(map(str, group))
    return f"[{shown}]" if len(shown) < 34 else f"[{group[0]}, {group[1]}, ..., {group[-1]}]"


def ExpertLayout(**begin):
    """The widget: sizes of all dimensions, whether experts are cut, the rank whose groups are shown, and examples."""
    v = next(iter(PRESETS.values())) | begin
    sizes = [(str(n), n) for n in SIZES]
    return Explorer(draw_experts, {
        **{name: option(name, sizes, v[name]) for name in ("dp", "cp", "tp", "pp")},
        "ep": option("ep", [*sizes, ("16", 16)], v["ep"]), "cut": option("Experts are cut", [CUT, WHOLE], v["cut"]),
        "rank": whole("Groups of rank", v["rank"], 0, v["dp"] * v["cp"] * v["tp"] * v["pp"] - 1),
    }, adjust=lambda dp, cp, tp, pp, ep, cut, rank: {"rank": {"max": min(dp * cp * tp * pp, MOST) - 1}},
        name="expert-layout", presets=PRESETS)
