"""A byte-level language model small enough to read: one MLP that guesses the next byte, on one device and on P ranks.

    the last 8 bytes -> one-hot (2048) -> w1, gelu -> w2 -> logits (256) -> cross-entropy with the byte that follows

The two training loops differ in one line each way: the operators are called with a communicator. Weights, batches and
learning rate are the same, so every loss, gradient and weight must be the same, up to the order of additions.
"""

from dataclasses import dataclass

import numpy as np

from refimpl.arrays import to_device, to_host
from refimpl.cost import traffic
from refimpl.model import mlp, text
from refimpl.model.layers import one_hot
from refimpl.model.loss import softmax_cross_entropy, softmax_cross_entropy_backward
from refimpl.parallel import tensor
from refimpl.testing import norm_of_all, relative_difference


@dataclass(frozen=True)
class Setup:
    """What is trained, and on what: sizes in features and sequences, rate of plain gradient descent."""

    steps: int = 20
    batch: int = 256
    context: int = 8
    hidden: int = 128
    rate: float = 0.1
    seed: int = 0

    def __post_init__(self):
        for name, least in (("steps", 1), ("batch", 1), ("context", 1), ("hidden", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)}: must be {least} or more")

    @property
    def inputs(self):
        """Features of the input: one of 256 for each byte of the context."""
        return self.context * text.VOCABULARY

    def parameters(self):
        """Fresh weights: the same ones on every rank and every run."""
        return mlp.init(np.random.default_rng(self.seed), self.inputs, self.hidden, text.VOCABULARY)

    def batch_at(self, step, data):
        """Inputs (batch, inputs), of unit variance, and targets (batch,) of one step."""
        bytes_, targets = text.batch(data, step, self.batch, self.context, self.seed)
        x = one_hot(bytes_, text.VOCABULARY, np.float64).reshape(self.batch, self.inputs)
        return x * text.VOCABULARY**0.5, targets

    def bytes_per_step(self, size, rank):
        """Bytes that one of `size` ranks sends in one step, as {"forward": ..., "backward": ...}: the formula."""
        counts = traffic.tensor_parallel_mlp(self.batch, self.inputs, text.VOCABULARY, size, rank)
        return {phase: n * np.dtype(np.float64).itemsize for phase, n in counts.items()}


@dataclass
class History:
    """What a training run leaves: the loss of each step, and {step: arrays} of the first and the last one."""

    losses: list
    gradients: dict
    weights: dict


def train_alone(setup, data, on_step=None):
    """Train on one device; on_step(loss) is called after every step. -> History"""
    return _train(setup, data, setup.parameters(), mlp.forward, mlp.backward, on_step)


def train_on_rank(comm, setup, data, on_step=None, like=None):
    """Train as one rank of a tensor-parallel group; a program for `run`. -> History with the rank's own shards

    like    an array of the library to compute with; NumPy's unless given
    """

    def forward(x, parameters):
        with comm.phase("forward"):
            return tensor.mlp_forward(x, parameters, comm)

    def backward(dy, saved):
        with comm.phase("backward"):
            return tensor.mlp_backward(dy, saved)

    parameters = tensor.shard_mlp(setup.parameters(), comm.rank, comm.size)
    return _train(setup, data, parameters, forward, backward, on_step, like)


def _train(setup, data, parameters, forward, backward, on_step, like=None):
    """The loop: batch, forward, loss, backward, w -= rate * dw. What is remembered of it is on the host."""
    like = np.empty(0) if like is None else like
    parameters = {name: to_device(p, like) for name, p in parameters.items()}
    history = History([], {}, {})
    for step in range(setup.steps):
        x, targets = (to_device(array, like) for array in setup.batch_at(step, data))
        logits, saved = forward(x, parameters)
        loss, saved_loss = softmax_cross_entropy(logits, targets)
        _, gradients = backward(softmax_cross_entropy_backward(1.0, saved_loss), saved)
        for name, gradient in gradients.items():
            parameters[name] -= setup.rate * gradient
        loss = float(to_host(loss))
        history.losses.append(loss)
        if step in (0, setup.steps - 1):
            history.gradients[step] = {name: to_host(g) for name, g in gradients.items()}
            history.weights[step] = {name: to_host(p.copy()) for name, p in parameters.items()}
        if on_step:
            on_step(loss)
    return history


def joined(shards):
    """The whole parameters (or gradients) from the ranks' shards; b2, which every rank has whole, from rank 0."""
    axis = {"w1": 1, "b1": 0, "w2": 0}
    return {name: np.concatenate([s[name] for s in shards], axis[name]) for name in axis} | {"b2": shards[0]["b2"]}


def copies_alike(ranks):
    """Whether every rank's copy of b2 and its gradient has the same bits: else it drifts apart, unseen at first."""
    return all(np.array_equal(arrays["b2"], getattr(ranks[0], kind)[step]["b2"])
               for h in ranks for kind in ("gradients", "weights") for step, arrays in getattr(h, kind).items())


def largest_differences(alone, ranks):
    """Largest relative difference, after the first and the last step, of loss, gradients and weights.

    alone    History of one device      ranks    Histories of all ranks, in order
    ->       {"first": {"loss": ..., "gradients": ..., "weights": ...}, "last": {...}}
    """
    last = len(alone.losses) - 1
    found = {}
    for name, step in (("first", 0), ("last", last)):
        losses = [relative_difference(h.losses[k], alone.losses[k]) for h in ranks for k in range(step + 1)]
        found[name] = {"loss": max(losses)}
        for kind in ("gradients", "weights"):
            whole = getattr(alone, kind)[step]
            mine = joined([getattr(h, kind)[step] for h in ranks])
            norm = norm_of_all(whole.values())
            found[name][kind] = max(relative_difference(mine[k], whole[k], norm) for k in whole)
    return found
