"""Attention on the ranks of a context-parallel group, for the tests: inputs, the truth, and programs."""

from drawing import draw

from refimpl.model.attention import NO_DROPOUT, Dropout, attention, attention_backward
from refimpl.parallel.context import core
from refimpl.parallel.context_layout import all_positions

SHARDED = dict.fromkeys(("q", "k", "v", "dout", "out"), 1)          # along the sequence
DROPOUT = Dropout(0.3, (1, 2, 3, 1), range(4, 6), None)             # of sequences 4 and 5 of a batch


def inputs_of(xp, b, s, n, g, d, dtype="float64"):
    """q, k, v and dout in the library xp."""
    shapes = {"q": (n, g, d), "k": (n, d), "v": (n, d), "dout": (n, g, d)}
    return {name: draw(xp, b, s, *shape, seed=seed, dtype=dtype) for seed, (name, shape) in enumerate(shapes.items())}


def of_heads(dropout, n, g):
    """The dropout with all heads numbered."""
    return dropout._replace(heads=range(n * g)) if dropout.rate else dropout


def truth(P, layout, causal=True, dropout=NO_DROPOUT):
    """One device that has the ranks' positions one behind the other: reference(q, k, v, dout) -> dict"""
    def reference(q, k, v, dout):
        everybody = all_positions(q.shape[1], P, layout)
        places = [p for mine in everybody for p in mine]
        out, saved = attention(q, k, v, causal, places, places, of_heads(dropout, *q.shape[2:4]))
        return dict(zip(("out", "dq", "dk", "dv"), (out, *attention_backward(dout, saved)), strict=True))

    return reference


def on_ranks(kind, layout, causal=True, ulysses=None, dropout=NO_DROPOUT, block=3):
    """program(comm, q, k, v, dout) -> dict, in phases forward and backward"""
    def program(comm, q, k, v, dout):
        forward, backward = core(comm, kind, layout, ulysses, block)
        mine = all_positions(q.shape[1] * comm.size, comm.size, layout)[comm.rank]
        with comm.phase("forward"):
            out, saved = forward(q, k, v, causal, mine, mine, of_heads(dropout, *q.shape[2:4]))
        with comm.phase("backward"):
            dq, dk, dv = backward(dout, saved)
        return {"out": out, "dq": dq, "dk": dk, "dv": dv}

    return program
