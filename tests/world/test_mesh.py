"""A mesh is the layout's groups as communicators: the same ranks, in the same order, on every axis."""

import numpy as np
import pytest

from refimpl import Layout, Mesh, run
from refimpl.collectives import all_gather
from refimpl.layout import GROUPS
from refimpl.world.mesh import AXES

LAYOUTS = [Layout(), Layout(tp=2, pp=2), Layout(dp=4, ep=2), Layout(dp=2, tp=2, ep=2, expert_tp=1),
           Layout(cp=2, dp=2, order="dp-cp-tp-pp"), Layout(dp=2, pp=2, cp=2, tp=2, ep=4),
           Layout(dp=3, cp=2, tp=2, ep=6, expert_tp=1), Layout(dp=2, pp=3, tp=2, order="pp-dp-tp-cp")]


def test_a_mesh_has_every_group_of_the_layout():
    assert sorted(AXES) == sorted(GROUPS)


def groups_of(comm, layout):
    """Per axis: the communicator's ranks as the layout counts them, my place, and what its members sent."""
    mesh = Mesh(comm, layout)
    assert mesh.comm is comm and mesh.layout is layout and str(comm.rank) in repr(mesh)
    found = {}
    for axis in AXES:
        group = getattr(mesh, axis)
        assert group.name == axis
        found[axis] = (list(group.ranks), group.rank, all_gather(np.array([comm.rank]), group).tolist())
    return found


@pytest.mark.parametrize("P, layout", [(layout.world, layout) for layout in LAYOUTS])
def test_communicators_of_every_axis_are_the_layouts_groups_in_the_layouts_order(P, world, layout):
    for rank, found in enumerate(run(groups_of, P, layout)):
        for axis in AXES:
            group = layout.group(axis, rank)
            assert found[axis] == (group, group.index(rank), group), axis


def test_A29_the_order_of_the_axes_says_which_ranks_are_neighbours():
    """facebookresearch/fairscale #1189, huggingface/picotron #17."""
    first = run(groups_of, 16, Layout(dp=2, pp=2, cp=2, tp=2))[5]
    assert [first[axis][0] for axis in ("tp", "cp", "dp", "pp")] == [[4, 5], [5, 7], [1, 5], [5, 13]]
    other = run(groups_of, 16, Layout(dp=2, pp=2, cp=2, tp=2, order="tp-cp-pp-dp"))[5]
    assert [other[axis][0] for axis in ("tp", "cp", "dp", "pp")] == [[4, 5], [5, 7], [5, 13], [1, 5]]


def test_a_mesh_of_a_part_of_the_world_counts_ranks_within_that_part():
    def program(comm):
        part = comm.split(comm.rank // 4)
        return Mesh(part, Layout(dp=2, tp=2)).dp.ranks

    assert run(program, 8) == [(0, 2), (1, 3), (0, 2), (1, 3), (4, 6), (5, 7), (4, 6), (5, 7)]


@pytest.mark.parametrize("P", [1, 3])
def test_a_layout_of_another_size_is_refused_before_anything_is_split(P, world):
    with pytest.raises(ValueError, match=rf"Layout\(dp=2.* needs 4 ranks, but world has {P}"):
        run(lambda comm: Mesh(comm, Layout(dp=2, tp=2)), P)


def test_a_thousand_ranks_make_their_mesh_in_seconds():
    layout = Layout(dp=8, pp=8, cp=2, tp=8)
    places = run(lambda comm: Mesh(comm, layout).pp.rank, layout.world)
    assert places == [layout.coordinates(rank)["pp"] for rank in range(layout.world)]
