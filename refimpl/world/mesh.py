"""A layout's groups as communicators: `mesh.tp`, `mesh.dp`, ... for the rank that made it.

    layout = Layout(dp=2, pp=2, tp=2)          mesh = Mesh(comm, layout)
    all_reduce(gradient, mesh.dp_cp)           mesh.pp.send(activation, mesh.pp.rank + 1)
"""

AXES = ("tp", "cp", "dp", "pp", "dp_cp", "ep", "expert_tp", "expert_dp")


class Mesh:
    """The communicators of one rank, an attribute for each axis of `layout`: tp cp dp pp dp_cp ep expert_tp expert_dp.

    comm      communicator of exactly layout.world ranks; every rank must make the mesh (it splits `comm` once per axis)
    layout    `Layout`; its node_size says where hierarchical collectives of the groups find nodes
    ValueError when the sizes differ.
    """

    def __init__(self, comm, layout):
        if comm.size != layout.world:
            raise ValueError(f"{layout} needs {layout.world} ranks, but {comm.name} has {comm.size}")
        self.comm, self.layout = comm, layout
        for axis in AXES:
            group = layout.group(axis, comm.rank)
            communicator = comm.split(group[0], group.index(comm.rank), name=axis)
            communicator.nodes = [layout.node(rank) for rank in group]
            setattr(self, axis, communicator)

    def __repr__(self):
        return f"<rank {self.comm.rank} of {self.layout}>"
