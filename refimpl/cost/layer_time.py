"""How long a GPU computes one layer of one micro-batch, before anything is sent: products, and kernels that move bytes.

    products         w_qkv, scores, w_o, w_1, w_2: forward once, backward twice          efficiency.product
    moved, forward   a norm 4 bytes an element of h; dropout and residual 7, or 6 without dropout; activation, softmax
    moved, backward  a norm 6; dropout 5 and residual 6

Bytes are for elements of 2; others in proportion. Attention by itself writes its scores, reads them for the softmax,
and so on: 9 bytes a score with dropout, 4 without, which at 2000 positions takes as long as its products. In one
kernel ("flash") nothing of that moves, and half of the pairs, which a causal mask hides, are passed over.
A weight gradient is added to those of earlier micro-batches by the product that makes it. Kernels: Megatron-LM's of
Korthikanti et al. 2022 (bias, activation; scale, mask and softmax; bias, dropout and residual: one kernel each).
Letters: T tokens inside the blocks, T_o outside, h hidden, t ranks, a heads, n key-value heads, f hidden of an MLP.
"""

from functools import lru_cache
from typing import NamedTuple

from refimpl.cost import context, efficiency
from refimpl.cost.kept import expert_tokens, outside, tokens

KERNELS, CORE = 18, 4                      # of a layer's forward, and of its core; backward twice as many


class Seconds(NamedTuple):
    """Seconds of one layer: products and moved bytes in forward, in backward, and of the core's forward alone."""

    forward_products: float
    forward_moved: float
    backward_products: float
    backward_moved: float
    core: float
    weights: float                         # of backward_products those that are for weight gradients

    @property
    def forward(self):
        """All of forward."""
        return self.forward_products + self.forward_moved

    @property
    def backward(self):
        """All of backward, without anything computed again."""
        return self.backward_products + self.backward_moved


def layer_seconds(training, gpu, dense=True):
    """The `Seconds` of one layer on a rank; dense: of its MLP, or of its mixture, balanced."""
    layout = training.layout
    return _layer(Alike(training, (
        training.model, layout.tp, layout.cp, layout.ep, layout.expert_tp, training.sequence, training.micro_batch,
        training.sequence_parallel, training.cp_kind, training.head_ranks, training.flash, training.dtype)), gpu, dense)


class Alike:
    """A `Training`, equal to all others with the same key: for what depends on nothing else."""

    def __init__(self, training, key):
        self.training, self.key, self.hash = training, key, hash(key)

    def __hash__(self):
        return self.hash

    def __eq__(self, other):
        return self.key == other.key


@lru_cache(4096)
def _layer(alike, gpu, dense):
    training = alike.training
    products = matrices(training, dense)
    one = lambda m, k, n, batch=1: efficiency.product(gpu, training.dtype, m, k, n, batch, training.item)
    forward = sum(one(*sizes) for sizes in products)
    inputs = sum(one(m, n, k, *batch) for m, k, n, *batch in products)               # dy w^T
    weights = sum(one(k, m, n, *batch) for m, k, n, *batch in products)              # x^T dy
    core, core_backward, core_moved, core_moved_backward = core_seconds(training, gpu)
    moved, moved_backward = (efficiency.moving(gpu, nbytes) for nbytes in moved_bytes(training, dense))
    launch = efficiency.of(gpu).launch
    return Seconds(forward + core, moved + core_moved + KERNELS * launch, inputs + weights + core_backward,
                   moved_backward + core_moved_backward + 2 * KERNELS * launch, core + core_moved + CORE * launch,
                   weights)


def matrices(training, dense):
    """The products of a layer with its weights: [(m, k, n, batch)], of one rank of tp."""
    model, t, T, h = training.model, training.layout.tp, tokens(training), training.model.hidden
    heads, kv = model.heads // t, max(model.kv_heads // t, 1)
    if model.latent:
        x = model.latent
        found = [(T, h, x.q), (T, x.q, heads * model.key), (T, h, x.kv + x.rotary),
                 (T, x.kv, heads * (x.plain + x.value))]
    else:
        found = [(T, h, (heads + 2 * kv) * model.head)]
    found.append((T, heads * model.value, h))
    if dense:
        return found + mlp(T, h, model.ffn // t, model.ups)
    here, layout = model.experts // training.layout.ep, training.layout
    each = -(-expert_tokens(training) // here)
    found += mlp(each, h, model.expert_ffn // layout.expert_tp, model.ups, here)
    found.append((outside(training), h, model.experts))
    return found + (mlp(T, h, model.shared_experts * model.expert_ffn // t, model.ups) if model.shared_experts else [])


def mlp(T, h, f, ups, batch=1):
    """The two products of an MLP."""
    return [(T, h, ups * f, batch), (T, f, h, batch)]


def core_seconds(training, gpu):
    """Attention between the projections: seconds of (products, products backward, moved, moved backward)."""
    model, b, U = training.model, training.micro_batch, training.head_ranks
    heads, rows, s = model.heads // training.layout.tp // U, training.positions * U, training.sequence
    if training.flash or rows < s:                                     # a ring merges blocks, as one kernel does
        flops = b * heads * rows * s * (model.key + model.value) / balance(training)   # 2 a pair, of half of the pairs
        return (*(efficiency.attention(gpu, training.dtype, times * flops) for times in (1, 2.5)), 0.0, 0.0)
    one = lambda m, k, n: efficiency.product(gpu, training.dtype, m, k, n, b * heads, training.item)
    scores, mixing = one(rows, model.key, s), one(rows, s, model.value)
    backward = one(rows, model.value, s) + 2 * one(s, rows, model.key) + one(s, rows, model.value)
    item, mask = training.item, 1 if model.dropout else 0
    each = b * heads * rows * s
    forward_bytes = each * (2 * item + (2 * item + mask) * mask)       # softmax; dropout
    backward_bytes = each * (3 * item + (2 * item + mask) * mask)
    return scores + mixing, backward, efficiency.moving(gpu, forward_bytes), efficiency.moving(gpu, backward_bytes)


def balance(training):
    """Share of a causal ring's time in which its ranks work: all wait for the one with most pairs (cost/context.py)."""
    P, kinds = training.layout.cp, {"ring": "contiguous", "striped": "striped"}
    kind = kinds.get(training.cp_kind, "zigzag") if P > 1 else "zigzag"
    return 1.0 if kind == "zigzag" else context.efficiency(training.sequence, P, kind)


def moved_bytes(training, dense):
    """Bytes that the other kernels of a layer read and write: (forward, backward)."""
    model, t, item = training.model, training.layout.tp, training.item
    T, T_o, h, mask = tokens(training), outside(training), model.hidden, 1 if model.dropout else 0
    heads, kv = model.heads // t, max(model.kv_heads // t, 1)
    residual = T_o * h * (3 * item + mask), T_o * h * (2 * item * mask + mask + 3 * item)
    norm = T_o * h * 2 * item, T_o * h * 3 * item
    if dense:
        hidden = T * (model.ffn // t)
    else:
        hidden = expert_tokens(training) * (model.expert_ffn // training.layout.expert_tp)
        hidden += T * (model.shared_experts * model.expert_ffn // t)
    activation = hidden * (model.ups + 1) * item, hidden * (2 * model.ups + 1) * item
    parted = T * (heads * (model.key + model.value) + kv * (model.key + model.value)) * 2 * item      # heads apart
    found = [2 * r + 2 * n + a + parted for r, n, a in zip(residual, norm, activation)]
    if not dense:                                                      # rows sorted, and back
        found = [nbytes + 4 * expert_tokens(training) * h * item for nbytes in found]
    return found


def ends_seconds(training, gpu):
    """The ends of one micro-batch: {"first": (forward, backward), "last": (forward, backward, of which weights)}."""
    model, t, T, T_o, item = training.model, training.layout.tp, tokens(training), outside(training), training.item
    classes = -(-model.vocabulary // t)
    table = [efficiency.product(gpu, training.dtype, *sizes, 1, item) for sizes in
             ((T, model.hidden, classes), (T, classes, model.hidden), (model.hidden, T, classes))]
    move = lambda nbytes: efficiency.moving(gpu, nbytes)
    looked_up = move(T_o * model.hidden * item * 4)
    softmax = move(T * classes * (item + 3 * 4)), move(T * classes * (4 + item))       # in float32
    norm = move(T_o * model.hidden * 2 * item), move(T_o * model.hidden * 3 * item)
    return {"first": (looked_up, 2 * looked_up),
            "last": (table[0] + softmax[0] + norm[0], table[1] + table[2] + softmax[1] + norm[1], table[2])}


def optimizer_seconds(training, gpu, parameters, shared):
    """Gradients unscaled, measured, clipped, read, and set to zero: 7 passes; Adam's memory read and written; weights.

    parameters    of a rank     shared    of what the optimizer works on here: fewer under ZeRO
    """
    states = training.states
    return efficiency.moving(gpu, parameters * states.gradients
                             + shared * (6 * states.gradients + 2 * states.optimizer + 4 + states.item))

