"""What a question's `check` may call: small experiments, run on ranks and counted, that compute its key a second time.

    elements('ring', 4, 100)                what rank 0 sends                       a ledger counts
    seconds('ring', 4, alpha, t)            how long it takes                       the virtual clock runs
    hangs('send, then receive', 4)          whether the ranks wait for ever         the world finds out
    mlp_step(4).all_reduces                 what a tensor-parallel MLP sends        a ledger counts
    simulate(build('1f1b', 4, 8))           what a pipeline takes, keeps and sends  lists of actions are timed
    zero_sends(3, 4, 2)                     what a step of ZeRO sends                a ledger counts

Nothing here knows a formula. Only tests call it: the quiz itself shows the key that the question states.
"""

from dataclasses import dataclass

import numpy as np

from refimpl import DeadlockError, Ledger, Link, Network, run
from refimpl.collectives import all_gather, all_reduce
from refimpl.cost import alpha_beta, traffic
from refimpl.course.quiz.composing_evidence import COMPOSING
from refimpl.course.quiz.context_evidence import CONTEXT
from refimpl.course.quiz.costs_evidence import COSTS
from refimpl.course.quiz.experts_evidence import EXPERTS
from refimpl.course.quiz.pipeline_evidence import PIPELINES
from refimpl.course.quiz.replicas_evidence import REPLICAS
from refimpl.model import mlp
from refimpl.parallel import tensor

ITEM = 8                                                 # bytes of a float64, which all experiments send
SHAPE = dict(rows=3, features=4, hidden=8)


# -- collectives ------------------------------------------------------------------------------------------------------

def elements(algorithm, P, n):
    """Elements that rank 0 of P sends to all-reduce n of them."""
    log = Ledger()
    run(lambda comm: all_reduce(np.ones(n), comm, algorithm=algorithm), P, ledger=log)
    return log.bytes_sent(rank=0) / ITEM


def seconds(algorithm, P, alpha, t):
    """Seconds on the virtual clock of an all-reduce over P ranks; t: what the whole array takes to pass a port."""
    def program(comm):
        x = np.ones(P)
        to_root_and_back(x, comm) if algorithm == "to rank 0 and back" else all_reduce(x, comm, algorithm=algorithm)
        return comm.clock

    return max(run(program, P, network=Network(Link(alpha, t / (P * ITEM)))))


def to_root_and_back(x, comm):
    """An all-reduce as one would write it first: everybody's array to rank 0, and the sum to everybody."""
    if comm.rank > 0:
        comm.send(x, 0)
        return comm.recv(0)
    total = sum([comm.recv(rank) for rank in range(1, comm.size)], x)
    for request in [comm.isend(total, rank) for rank in range(1, comm.size)]:
        request.wait()
    return total


def alike_on_all_ranks(algorithm, P):
    """Whether all ranks get the same bits, of float32 numbers that rounding changes."""
    results = run(lambda comm: all_reduce(rough(comm), comm, algorithm=algorithm), P)
    return all(np.array_equal(result, results[0]) for result in results)


def as_on_one_device(algorithm, P):
    """Whether these bits are those of x0 + x1 + x2 + ..., as one device would add them up."""
    results = run(lambda comm: (rough(comm), all_reduce(rough(comm), comm, algorithm=algorithm)), P)
    return np.array_equal(sum(x for x, _ in results), results[0][1])


def rough(comm):
    """Numbers of different sizes, which do not add up without rounding."""
    rng = np.random.default_rng(comm.rank)
    return (rng.normal(size=100) * 10.0 ** rng.integers(-4, 4, 100)).astype(np.float32)


# -- who waits for whom ------------------------------------------------------------------------------------------------

def exchange(order):
    """A program that swaps arrays around a ring; order: what rank r does, a list of "send", "receive", "barrier"."""
    def program(comm):
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        does = {
            "send": lambda: comm.send(np.ones(3), right),
            "receive": lambda: comm.recv(left),
            "tagged send": lambda: comm.send(np.ones(3), right, tag=comm.rank),
            "tagged receive": lambda: comm.recv(left, tag=left),
            "sendrecv": lambda: comm.sendrecv(np.ones(3), right, left),
            "barrier": comm.barrier,
        }
        for step in order(comm.rank):
            does[step]()

    return program


PROGRAMS = {
    "send, then receive": exchange(lambda rank: ["send", "receive"]),
    "receive, then send": exchange(lambda rank: ["receive", "send"]),
    "barrier, send, receive": exchange(lambda rank: ["barrier", "send", "receive"]),
    "send with a tag of its own": exchange(lambda rank: ["tagged send", "tagged receive"]),
    "sendrecv": exchange(lambda rank: ["sendrecv"]),
    "even ranks send first": exchange(lambda rank: ["receive", "send"] if rank % 2 else ["send", "receive"]),
    "only rank 0 reduces": lambda comm: all_reduce(np.ones(3), comm) if comm.rank == 0 else None,
}


def hangs(program, P, rendezvous=True):
    """Whether P ranks that run the program of this name wait for ever; rendezvous: a send waits for its receiver."""
    try:
        run(PROGRAMS[program], P, rendezvous=rendezvous)
    except DeadlockError:
        return True
    return False


# -- tensor parallelism ------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Sent:
    """What rank 0 sent in a step: elements, and how many all-reduces of 2 (P-1) messages that was."""

    elements: float
    all_reduces: int


def mlp_step(P, rows=4, features=16, hidden=64):
    """What rank 0 sends in the forward and the backward of a tensor-parallel MLP, features -> hidden -> features."""
    whole, x, dy = an_mlp(rows, features, hidden)

    def program(comm):
        _, saved = tensor.mlp_forward(x, tensor.shard_mlp(whole, comm.rank, P), comm)
        tensor.mlp_backward(dy, saved)

    return counted(program, P)


def layer_all_reduces(kind, P):
    """(all-reduces of the forward, of the backward) of one layer; kind: "column" or "row"."""
    forward, backward = {"column": (tensor.column_parallel, tensor.column_parallel_backward),
                         "row": (tensor.row_parallel, tensor.row_parallel_backward)}[kind]

    def program(comm, with_backward):
        y, saved = forward(np.ones((2, 3)), np.ones((3, 4)), np.ones(4), comm)
        if with_backward:
            backward(np.ones_like(y), saved)

    alone = counted(program, P, False).all_reduces
    return alone, counted(program, P, True).all_reduces - alone


def counted(program, P, *args):
    """What rank 0 sends in a run of the program on P ranks; every message must belong to a ring all-reduce."""
    log = Ledger()
    run(program, P, *args, ledger=log)
    messages = log.messages(rank=0)
    assert log.messages(rank=0, collective="all_reduce") == messages and messages % (2 * (P - 1)) == 0
    return Sent(log.bytes_sent(rank=0) / ITEM, messages // (2 * (P - 1)))


def bias_added_on_every_rank(P, b):
    """How much larger the output of a row-parallel layer is when each rank adds its bias, b, before the all-reduce."""
    def program(comm):
        x, w, bias = np.ones((2, 3)), np.ones((3, 4)), np.full(4, b)
        right, _ = tensor.row_parallel(x, w, bias, comm)
        return all_reduce(x @ w + bias, comm) - right

    too_large = run(program, P)[0]
    assert np.ptp(too_large) == 0
    return float(too_large.flat[0])


def wrong_gradients(P, f=True):
    """Names of an MLP's gradients (dx, w1, b1, w2, b2) that differ from one device's; f=False: no all-reduce of dx."""
    whole, x, dy = an_mlp(**SHAPE)
    _, saved = mlp.forward(x, whole)
    whole_dx, expected = mlp.backward(dy, saved)
    gelu, gelu_backward = mlp.activation_pair("gelu")

    def program(comm):
        wanted, mine = (tensor.shard_mlp(all_of_it, comm.rank, P) for all_of_it in (expected, whole))
        a, saved1 = tensor.column_parallel(x, mine["w1"], mine["b1"], comm if f else comm.split(comm.rank))
        h, saved_gelu = gelu(a)
        _, saved2 = tensor.row_parallel(h, mine["w2"], mine["b2"], comm)
        dh, dw2, db2 = tensor.row_parallel_backward(dy, saved2)
        dx, dw1, db1 = tensor.column_parallel_backward(gelu_backward(dh, saved_gelu), saved1)
        pairs = {"dx": (dx, whole_dx)} | {name: (gradient, wanted[name]) for name, gradient in
                                          (("w1", dw1), ("b1", db1), ("w2", dw2), ("b2", db2))}
        return [name for name, (found, wanted) in pairs.items() if differs(found, wanted)]

    return sorted({name for names in run(program, P) for name in names})


def between_two_columns(P):
    """The collective that makes of a column-parallel layer's output what the next one wants: all of x w, everywhere."""
    _, x, _ = an_mlp(**SHAPE)
    w = np.arange(4.0 * P).reshape(4, P)

    def program(comm):
        y, _ = tensor.column_parallel(x, w[:, comm.rank:comm.rank + 1], None, comm)
        tried = {"nothing": y, "all_reduce": all_reduce(y, comm), "all_gather": all_gather(y, comm, axis=1)}
        return [name for name, z in tried.items() if z.shape == (3, P) and not differs(z, x @ w)]

    return run(program, P)[0][0]


def gelu_of_parts_differs():
    """Whether gelu(a) + gelu(b) is not gelu(a + b)."""
    gelu, _ = mlp.activation_pair("gelu")
    a, b = np.array([1.0]), np.array([-2.0])
    return differs(gelu(a)[0] + gelu(b)[0], gelu(a + b)[0])


def an_mlp(rows, features, hidden):
    """(parameters, x, dy) of an MLP with random numbers."""
    draw = np.random.default_rng(0).normal
    parameters = {"w1": draw(size=(features, hidden)), "b1": draw(size=hidden),
                  "w2": draw(size=(hidden, features)), "b2": draw(size=features)}
    return parameters, draw(size=(rows, features)), draw(size=(rows, features))


def differs(a, b):
    """Whether two arrays differ by more than rounding."""
    return bool(np.linalg.norm(a - b) > 1e-10 * np.linalg.norm(b))


EVIDENCE = {
    **{f.__name__: f for f in (
        elements, seconds, alike_on_all_ranks, as_on_one_device, hangs, mlp_step, layer_all_reduces,
        bias_added_on_every_rank, wrong_gradients, between_two_columns, gelu_of_parts_differs)},
    **PIPELINES, **REPLICAS, **CONTEXT, **EXPERTS, **COMPOSING, **COSTS,
    "alpha_beta": alpha_beta, "traffic": traffic,
}
