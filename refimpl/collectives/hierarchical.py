"""Hierarchical all-reduce: most bytes stay inside a node, where links are fast.

    node 0    0 1 2 3        1. reduce-scatter inside each node: rank j of a node is left with chunk j of its node's sum
              | | | |        2. all-reduce of chunk j among the j-th ranks of all nodes: 1/N of the array crosses
    node 1    4 5 6 7        3. all-gather inside each node

N ranks a node, M nodes, n elements. A rank sends 2 (N-1)/N n over the fast link and 2 (M-1)/M n/N over the slow one; a
flat ring sends 2 (P-1)/P n over both. Time, a NIC for each rank: 2 (N-1)(alpha + n/N beta) inside and
2 (M-1)(alpha' + n/P beta') between nodes. (Cho, Finkler, Kung & Hunter 2019, BlueConnect; NCCL and Horovod do alike.)

A node is what `comm.node` says: layout.node_size ranks in a group of a mesh, else a node of the network, or a host.
"""

from refimpl.collectives import ring, streamed_ring
from refimpl.collectives.chunks import bounds


def all_reduce_(x, comm, op="sum"):
    """Reduce x over the ranks, in place, on every rank; all ranks end with the same bits.

    x (n, ...), the same shape on every rank    ValueError when the nodes do not hold equally many ranks of the group
    """
    inside, across = node_groups(comm)
    b = bounds(x.shape[0], inside.size)
    part = lambda group: group.collective("all_reduce", bare=comm.bare)       # so that its messages count as the call's
    with part(inside), part(across):
        streamed_ring.reduce_scatter_(x, inside, op)
        streamed_ring.all_reduce_(x[b[inside.rank]:b[inside.rank + 1]], across, op)
        ring.all_gather_(x, inside)
    return x


def node_groups(comm):
    """(ranks of my node, ranks with my place in every node) as communicators; made once, then remembered by `comm`."""
    if comm.node_groups is None:
        nodes = {}
        for rank in range(comm.size):
            nodes.setdefault(comm.node(rank), []).append(rank)
        sizes = sorted({len(ranks) for ranks in nodes.values()})
        if len(sizes) > 1:
            raise ValueError(f"algorithm='hierarchical' needs equally many ranks of {comm.name} on each node; nodes "
                             f"have {', '.join(map(str, sizes))} of them: use 'ring', or give each {sizes[-1]}")
        mine = nodes[comm.node(comm.rank)]
        comm.node_groups = (comm.split(mine[0], comm.rank, name=f"{comm.name}.node"),
                            comm.split(mine.index(comm.rank), comm.rank, name=f"{comm.name}.nodes"))
    return comm.node_groups
