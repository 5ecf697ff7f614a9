"""Layout: coordinates and groups as arithmetic."""

import dataclasses
import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refimpl.layout import AXES, GROUPS, Layout

ORDERS = ["-".join(axes) for axes in itertools.permutations(AXES)]


@st.composite
def layouts(draw):
    tp, cp, dp, pp = (draw(st.integers(1, 3)) for _ in AXES)
    expert_tp = draw(st.sampled_from([None, 1, tp]))
    shared = dp * cp * (tp if expert_tp == 1 else 1)
    ep = draw(st.sampled_from([d for d in range(1, shared + 1) if shared % d == 0]))
    return Layout(dp, pp, cp, tp, ep, expert_tp, draw(st.sampled_from(ORDERS)), draw(st.integers(1, 9)))


def every_layout(test):
    return settings(max_examples=60, deadline=None)(given(layouts())(test))


# The cases from the field.

SIXTEEN = {                                       # A29: sizes all 2, tp fastest
    "tp": [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14, 15]],
    "cp": [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]],
    "dp": [[0, 4], [1, 5], [2, 6], [3, 7], [8, 12], [9, 13], [10, 14], [11, 15]],
    "pp": [[0, 8], [1, 9], [2, 10], [3, 11], [4, 12], [5, 13], [6, 14], [7, 15]],
}


def test_sixteen_ranks_in_megatron_order_have_the_groups_of_A29():
    layout = Layout(dp=2, pp=2, cp=2, tp=2)
    assert {axis: layout.groups(axis) for axis in AXES} == SIXTEEN


def test_dp_outermost_swaps_the_groups_of_dp_and_pp_in_A29():
    layout = Layout(dp=2, pp=2, cp=2, tp=2, order="tp-cp-pp-dp")
    assert {axis: layout.groups(axis) for axis in AXES} == {**SIXTEEN, "dp": SIXTEEN["pp"], "pp": SIXTEEN["dp"]}


def test_the_slowest_axis_alone_crosses_nodes_of_eight_in_A29():
    def crossing(order):
        layout = Layout(dp=2, pp=2, cp=2, tp=2, order=order)
        return [axis for axis in AXES if layout.crosses_nodes(axis)]

    assert crossing("tp-cp-dp-pp") == ["pp"]
    assert crossing("tp-cp-pp-dp") == ["dp"]


# Invariants of every layout.

@every_layout
def test_the_groups_of_every_name_hold_each_rank_once_and_are_equally_long(layout):
    for name in GROUPS:
        groups = layout.groups(name)
        assert sorted(itertools.chain(*groups)) == list(range(layout.world))
        assert {len(group) for group in groups} == {layout.size(name)}
        assert groups == sorted(groups)


@every_layout
def test_a_rank_finds_itself_in_its_group_and_at_its_coordinates(layout):
    for rank in range(layout.world):
        assert layout.rank(**layout.coordinates(rank)) == rank
        for axis in AXES:
            assert layout.group(axis, rank)[layout.coordinates(rank)[axis]] == rank
        for name in GROUPS:
            assert [group for group in layout.groups(name) if rank in group] == [layout.group(name, rank)]


@every_layout
def test_ranks_of_an_axis_group_differ_in_that_coordinate_only(layout):
    for axis in AXES:
        for group in layout.groups(axis):
            places = [layout.coordinates(rank) for rank in group]
            assert [place.pop(axis) for place in places] == list(range(getattr(layout, axis)))
            assert all(place == places[0] for place in places)


@every_layout
def test_the_named_order_is_how_fast_the_coordinates_change(layout):
    fastest_first = layout.order.split("-")
    place = [layout.coordinates(rank) for rank in range(layout.world)]
    assert place == sorted(place, key=lambda p: [p[axis] for axis in reversed(fastest_first)])


@every_layout
def test_ep_does_not_multiply_the_world(layout):
    assert layout.world == layout.dp * layout.pp * layout.cp * layout.tp
    assert dataclasses.replace(layout, ep=1).world == layout.world


@every_layout
def test_expert_groups_span_exactly_one_pipeline_stage(layout):
    """From any rank, walking along ep, expert_tp and expert_dp reaches each rank of its stage by one way only."""
    for rank in range(layout.world):
        reached = [c for a in layout.group("ep", rank) for b in layout.group("expert_tp", a)
                   for c in layout.group("expert_dp", b)]
        stage = [r for r in range(layout.world) if layout.coordinates(r)["pp"] == layout.coordinates(rank)["pp"]]
        assert sorted(reached) == stage
    assert math.prod(layout.size(name) for name in ("ep", "expert_tp", "expert_dp")) * layout.pp == layout.world


@every_layout
def test_ring_links_leave_a_node_exactly_when_the_group_spans_several(layout):
    for name in GROUPS:
        for group, links in zip(layout.groups(name), layout.node_crossings(name), strict=True):
            nodes = {rank // layout.node_size for rank in group}
            assert links == 0 if len(nodes) == 1 else len(nodes) <= links <= len(group)
        assert layout.crosses_nodes(name) == any(layout.node_crossings(name))


# Expert groups, spelled out.

def test_experts_that_keep_tp_are_dealt_over_cp_then_dp():
    layout = Layout(dp=2, cp=2, tp=2, ep=2)
    assert layout.expert_tp == 2
    assert layout.groups("ep") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert layout.groups("expert_tp") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert layout.groups("expert_dp") == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_unsplit_experts_are_dealt_over_tp_first():
    layout = Layout(dp=2, cp=2, tp=2, ep=4, expert_tp=1)
    assert layout.groups("ep") == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert layout.groups("expert_tp") == [[rank] for rank in range(8)]
    assert layout.groups("expert_dp") == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_expert_lines_follow_coordinates_not_rank_numbers():
    layout = Layout(dp=2, cp=2, ep=2, order="tp-dp-cp-pp")              # rank = cp * 2 + dp
    assert layout.groups("ep") == [[0, 2], [1, 3]]                      # still cp first
    assert layout.groups("dp_cp") == [[0, 2, 1, 3]]


def test_a_ring_over_two_nodes_leaves_them_as_often_as_its_order_says():
    assert Layout(dp=4, node_size=2).node_crossings("dp") == [2]        # 0 1 | 2 3: 1 to 2 and 3 to 0
    assert Layout(dp=2, cp=2, order="dp-cp-tp-pp", node_size=2).node_crossings("dp_cp") == [4]     # 0 2 1 3
    assert Layout(dp=4, node_size=8).node_crossings("dp") == [0]


def test_layouts_are_values():
    assert Layout(tp=4) == Layout(tp=4, expert_tp=4)
    assert len({Layout(tp=4), Layout(tp=4, expert_tp=4), Layout(tp=4, expert_tp=1)}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        Layout().tp = 2


# Bad input.

@pytest.mark.parametrize(("sizes", "says"), [
    ({"tp": 0}, "tp=0: expected a whole number of ranks, 1 or more; nearest 1"),
    ({"dp": 2.0}, "dp=2.0: expected a whole number of ranks, 1 or more; nearest 2"),
    ({"pp": "3"}, "pp='3': .* nearest 3"),
    ({"cp": True}, "cp=True"),
    ({"ep": None}, "ep=None: .* nearest 1"),
    ({"node_size": -8}, "node_size=-8"),
    ({"tp": 8, "expert_tp": 6}, "expert_tp=6: expected 1 or tp=8; nearest 8"),
    ({"dp": 4, "cp": 2, "tp": 3, "ep": 3}, "ep=3 does not divide cp x dp = 8.*may be one of 1, 2, 4, 8"),
    ({"dp": 4, "tp": 2, "ep": 3, "expert_tp": 1}, "ep=3 does not divide tp x cp x dp = 8"),
    ({"order": "tp-pp-dp"}, "order='tp-pp-dp': expected tp, cp, dp and pp.*nearest 'tp-pp-dp-cp'"),
    ({"order": "pp,dp,cp,tp"}, "nearest 'pp-dp-cp-tp'"),
    ({"order": "tp-cp-dp-pp-ep"}, "nearest 'tp-cp-dp-pp'"),
    ({"order": None}, "order=None: .*nearest 'tp-cp-dp-pp'"),
])
def test_a_bad_size_is_named_with_the_nearest_good_one(sizes, says):
    with pytest.raises(ValueError, match=says):
        Layout(**sizes)


@pytest.mark.parametrize(("ask", "says"), [
    (lambda layout: layout.coordinates(4), r"rank 4: expected 0\.\.3; nearest 3"),
    (lambda layout: layout.node(-1), r"rank -1: expected 0\.\.3; nearest 0"),
    (lambda layout: layout.group("tp", 1.5), r"rank 1.5: expected 0\.\.3; nearest 2"),
    (lambda layout: layout.rank(tp=2), r"tp coordinate 2: expected 0\.\.1; nearest 1"),
    (lambda layout: layout.groups("expert"), "group 'expert': expected one of tp, cp.*nearest 'expert_"),
    (lambda layout: layout.size("dp-cp"), "group 'dp-cp': .*nearest 'dp_cp'"),
])
def test_a_bad_question_is_named_with_the_nearest_good_one(ask, says):
    with pytest.raises(ValueError, match=says):
        ask(Layout(dp=2, tp=2))
