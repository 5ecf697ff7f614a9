"""How big models are: a dozen numbers, and from them every parameter and every floating-point operation.

    parameters      the sum over `tensors`: 12 l h^2 (1 + 13/(12 h) + (V + s)/(12 l h)) and a last norm for GPT
    active          of a mixture of experts: what one token passes through, top_k of the experts
    forward FLOPs   2 per matrix element and token, and 2 s^2 (d + d') per head for the attention's core
    a step          forward + backward (twice the forward) [+ what recomputation does again]
                    none       72 B l s h^2 (1 + s/(6h) + V/(12 l h))          model FLOPs, of which MFU is made
                    selective  + 4 B l s^2 h                                   the core's forward once more
                    full       96 B l s h^2 (1 + s/(6h) + V/(16 l h))          every layer's forward once more

The right-hand sides are those of GPT's shapes (Narayanan et al. 2021, equations 2 and 3; Korthikanti et al. 2022,
equation 7); the code counts matrix by matrix, so that it holds for all models. As there, matrices count and nothing
else, and attention counts all s^2 pairs, though half are masked. Equation 8 of Korthikanti et al. prints s/(3h) for
selective recomputation, three times what the core's forward takes: `selective_flops_as_published`, for comparing HFU.

Letters: B sequences, s tokens each, l layers, h hidden, V vocabulary, d and d' features of a key and of a value.
"""

import operator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from refimpl.cost.listing import divisors

RECOMPUTE = ("none", "selective", "full")
NORMS = ("layer", "rms")


class Tensor(NamedTuple):
    """A parameter array: `units` x `each` elements, cut along its units, and `copies` of it (experts).

    part    "embedding", "attention", "mlp", "router", "experts", "shared", "norms" or "head"
    cut     what a tensor-parallel rank has some of: "heads", "kv", "ffn", "vocabulary"; None: every rank has it all
    """

    part: str
    name: str                          # w: a matrix that tokens are multiplied by; b: a bias; others are looked up
    units: int
    each: int
    cut: str | None = None
    copies: int = 1

    @property
    def size(self):
        """Elements."""
        return self.units * self.each * self.copies


class Latent(NamedTuple):
    """Multi-head latent attention (DeepSeek-V2): queries and key-values pass through narrow `q`, `kv`; features a head:
    `plain` and `rotary` of queries and keys (the rotary part of a key is shared by all heads), `value` of values."""

    q: int
    kv: int
    plain: int
    rotary: int
    value: int


@dataclass(frozen=True)
class Model:
    """The sizes of a transformer. Frozen and hashable. ValueError for sizes that do not fit, naming what does."""

    name: str
    layers: int
    hidden: int
    heads: int
    vocabulary: int
    kv_heads: int | None = None        # as many as heads unless given
    head: int | None = None            # features a head; hidden / heads unless given
    ffn: int | None = None             # of a dense MLP; 4 hidden unless given
    gated: bool = False                # SwiGLU: three matrices
    sequence: int = 2048               # tokens of a training sequence unless said otherwise
    tied: bool = True                  # the output table is the input's
    bias: bool = True                  # of linear layers; experts have none
    qkv_bias: bool | None = None       # of queries, keys and values, where it differs
    norm: str = "layer"                # "layer": scale and shift; "rms": scale
    qk_norm: bool = False              # a norm of each head's queries and keys
    positions: int = 0                 # learned ones
    dropout: bool = False              # trained with dropout: its masks are kept
    experts: int = 0
    top_k: int = 1                     # experts a token goes to
    expert_ffn: int | None = None      # as ffn unless given
    shared_experts: int = 0            # that every token goes to, as wide as an expert
    dense_layers: int = 0              # the first so many layers have an MLP in place of experts
    router_bias: bool = False          # one number an expert, for balance
    latent: Latent | None = None

    def __post_init__(self):
        set_ = lambda name, value: object.__setattr__(self, name, value)
        for name in ("layers", "hidden", "heads", "vocabulary", "sequence"):
            _whole(name, getattr(self, name), 1)
        if self.head is None and self.hidden % self.heads:
            raise ValueError(f"heads={self.heads} does not divide hidden={self.hidden}; heads may be "
                             f"{divisors(self.hidden)}")
        for name, value in (("kv_heads", self.heads), ("head", self.hidden // self.heads), ("ffn", 4 * self.hidden),
                            ("qkv_bias", self.bias)):
            if getattr(self, name) is None:
                set_(name, value)
        if self.expert_ffn is None:
            set_("expert_ffn", self.ffn)
        for name in ("kv_heads", "head", "ffn", "expert_ffn", "top_k"):
            _whole(name, getattr(self, name), 1)
        for name in ("positions", "experts", "shared_experts", "dense_layers"):
            _whole(name, getattr(self, name), 0)
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads={self.kv_heads} does not divide heads={self.heads}; kv_heads may be "
                             f"{divisors(self.heads)}")
        if self.norm not in NORMS:
            raise ValueError(f"norm={self.norm!r}: expected one of {', '.join(NORMS)}")
        for name, most, of in (("top_k", self.experts or 1, "experts"), ("dense_layers", self.layers, "layers")):
            if getattr(self, name) > most:
                raise ValueError(f"{name}={getattr(self, name)} of {of}={getattr(self, of)}; at most {most}")

    # What it is made of.

    @property
    def ups(self):
        """Matrices of an MLP that lead up: 2 where it is gated."""
        return 2 if self.gated else 1

    @property
    def key(self):
        """Features of a query or key, a head."""
        return self.latent.plain + self.latent.rotary if self.latent else self.head

    @property
    def value(self):
        """Features of a value, a head."""
        return self.latent.value if self.latent else self.head

    def is_dense(self, layer):
        """Whether this layer has an MLP and no experts."""
        return not self.experts or layer < self.dense_layers

    @cached_property
    def embedding(self):
        """The arrays before the first layer."""
        h = self.hidden
        learned = [Tensor("embedding", "positions", self.positions, h)] if self.positions else []
        return [Tensor("embedding", "tokens", self.vocabulary, h, "vocabulary"), *learned]

    @cached_property
    def output(self):
        """The arrays after the last layer; the table is there even where it is tied."""
        return [*self._norm("norm"), Tensor("head", "w", self.vocabulary, self.hidden, "vocabulary")]

    def tensors(self, layer):
        """The arrays of one layer, from 0."""
        return self._dense_layer if self.is_dense(layer) else self._expert_layer

    @cached_property
    def _dense_layer(self):
        return [*self._attention(), *self._mlp("mlp", self.ffn), *self._norm("norm1"), *self._norm("norm2")]

    @cached_property
    def _expert_layer(self):
        h, shared = self.hidden, self.shared_experts * self.expert_ffn
        router = [Tensor("router", "w", self.experts, h)]
        if self.router_bias:
            router.append(Tensor("router", "b", self.experts, 1))
        return [*self._attention(), *router, *self._mlp("experts", self.expert_ffn, self.experts),
                *(self._mlp("shared", shared) if shared else []), *self._norm("norm1"), *self._norm("norm2")]

    def _attention(self):
        h, a, n, d, x = self.hidden, self.heads, self.kv_heads, self.head, self.latent
        if x:
            return [Tensor("attention", "w qa", h, x.q), Tensor("attention", "norm q", x.q, 1),
                    Tensor("attention", "w qb", a, x.q * (x.plain + x.rotary), "heads"),
                    Tensor("attention", "w kva", h, x.kv + x.rotary), Tensor("attention", "norm kv", x.kv, 1),
                    Tensor("attention", "w kvb", a, x.kv * (x.plain + x.value), "heads"),
                    Tensor("attention", "w o", a, x.value * h, "heads")]
        found = [Tensor("attention", "w q", a, h * d, "heads"), Tensor("attention", "w kv", n, 2 * h * d, "kv"),
                 Tensor("attention", "w o", a, d * h, "heads")]
        if self.qkv_bias:
            found += [Tensor("attention", "b q", a, d, "heads"), Tensor("attention", "b kv", n, 2 * d, "kv")]
        if self.bias:
            found.append(Tensor("attention", "b o", h, 1))
        if self.qk_norm:
            found.append(Tensor("attention", "norm qk", 2 * d, 1))
        return found

    def _mlp(self, part, ffn, copies=1):
        found = [Tensor(part, "w 1", ffn, self.ups * self.hidden, "ffn", copies),
                 Tensor(part, "w 2", ffn, self.hidden, "ffn", copies)]
        if self.bias and part == "mlp":
            found += [Tensor(part, "b 1", ffn, self.ups, "ffn"), Tensor(part, "b 2", self.hidden, 1)]
        return found

    def _norm(self, name):
        return [Tensor("norms", name, self.hidden, 2 if self.norm == "layer" else 1)]

    # Parameters.

    @cached_property
    def parts(self):
        """Parameters by part, and their "total"."""
        found = {}
        output = [t for t in self.output if not (self.tied and t.part == "head")]
        for tensors, times in ((self.embedding, 1), *self._layers(), (output, 1)):
            for tensor in tensors:
                found[tensor.part] = found.get(tensor.part, 0) + times * tensor.size
        return found | {"total": sum(found.values())}

    def _layers(self):
        """The arrays of each kind of layer, and how many layers are of it."""
        dense = self.dense_layers if self.experts else self.layers
        return [(self._dense_layer, dense)] + ([(self._expert_layer, self.layers - dense)] if self.experts else [])

    @property
    def parameters(self):
        """All parameters."""
        return self.parts["total"]

    @cached_property
    def active_parameters(self):
        """Parameters that one token passes through, both tables counted: all of them without experts."""
        return self.parameters - self.parts.get("experts", 0) * (self.experts - self.top_k) // max(self.experts, 1)

    # Floating-point operations.

    def layer_flops(self, layer, sequence=None):
        """Forward FLOPs of one layer for one sequence: {"matrices": ..., "core": ...}."""
        s = self.sequence if sequence is None else sequence
        matrices = sum(t.units * t.each * (self.top_k if t.part == "experts" else t.copies)
                       for t in self.tensors(layer) if t.name.startswith("w"))
        return {"matrices": 2 * s * matrices, "core": 2 * s * s * self.heads * (self.key + self.value)}

    def head_flops(self, sequence=None):
        """Forward FLOPs of the output table for one sequence."""
        return 2 * (self.sequence if sequence is None else sequence) * self.hidden * self.vocabulary

    def forward_flops(self, sequence=None):
        """Forward FLOPs of one sequence: {"matrices", "core", "head", "total"}."""
        dense = self.dense_layers if self.experts else self.layers
        kinds = [(0, dense), (self.layers - 1, self.layers - dense)]
        found = {"matrices": 0, "core": 0}
        for layer, times in kinds:
            if times:
                for kind, flops in self.layer_flops(layer, sequence).items():
                    found[kind] += times * flops
        found["head"] = self.head_flops(sequence)
        return found | {"total": sum(found.values())}

    def flops(self, sequences=1, sequence=None, recompute="none"):
        """FLOPs of a step over `sequences` sequences, with what is computed again: HFU's; recompute="none": MFU's."""
        if recompute not in RECOMPUTE:
            raise ValueError(f"recompute={recompute!r}: expected one of {', '.join(RECOMPUTE)}")
        forward = self.forward_flops(sequence)
        again = {"none": 0, "selective": forward["core"], "full": forward["matrices"] + forward["core"]}[recompute]
        return sequences * (3 * forward["total"] + again)

    def selective_flops_as_published(self, sequences=1, sequence=None):
        """Equation 8 of Korthikanti et al., which counts three times the core's forward again (theirs has s/(3h))."""
        forward = self.forward_flops(sequence)
        return sequences * 3 * (forward["total"] + forward["core"])


def _whole(name, value, least):
    try:
        right = not isinstance(value, bool) and operator.index(value) >= least
    except TypeError:
        right = False
    if not right:
        raise ValueError(f"{name}={value!r}: expected a whole number, {least} or more")
