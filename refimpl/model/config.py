"""What a transformer is made of: its sizes, the names and shapes of its parameters, and fresh ones.

    GPT-2 style                             Llama style
    learned positions, added once           rotary positions, in every layer
    LayerNorm, GELU MLP, biases             RMSNorm, SwiGLU MLP, no biases
    dropout                                 none
    output table tied to the input's        a table of its own

Parameters are one flat dict of arrays, named by where they stand; so are their gradients:

    embedding.tokens (V, h)     embedding.positions (context, h)
    blocks.0.norm1.w            blocks.0.attention.wqkv  .bqkv  .wo  .bo       norm?.w, norm?.b (h,)
    blocks.0.norm2.w            blocks.0.mlp.w1  .b1  .w2  .b2                 see mlp.py for their shapes
    norm.w                      head.tokens (V, h)                             the output table where it is not tied

With experts a layer has `moe` in place of `mlp`, without biases (moe.py):

    blocks.0.moe.router (h, E)  .w1 (E, h, 2, f) or (E, h, f)  .w2 (E, f, h)   .shared.w1  .shared.w2    as mlp's

Fused projections keep their parts on axes of their own, so that a shard is a cut along one axis. For 4 query heads that
share 2 key-value heads, n = 2 groups of g = 2, each head d = h/4 columns:

    wqkv (h, n, g + 2, d)       group 0: q0 q1 k0 v0 | group 1: q2 q3 k1 v1           cut along axis 1
    w1 (h, 2, ffn)              gates: g0 .. | ups: u0 ..                             cut along axis 2
    wo (n g d, h)               rows of head 0, head 1, ...                           cut along axis 0

With more ranks than groups a rank takes its query heads of the group, and the whole key and value head.
Letters: V vocabulary, h hidden, n key-value heads, g query heads for each, d features a head, E experts of f features.
"""

import difflib
import math
from dataclasses import dataclass
from numbers import Integral

from refimpl.arrays import array_namespace
from refimpl.model.router import BY_POSITION, DROPS, ROUTERS, SOFTMAX_FIRST

FAMILIES = ("gpt2", "llama")
ATTENTIONS = ("naive", "blockwise")
RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Config:
    """A transformer. ValueError for sizes that do not fit, naming what does."""

    family: str                        # "gpt2" or "llama"
    vocabulary: int
    hidden: int
    layers: int
    heads: int                         # query heads
    kv_heads: int | None = None        # key-value heads; as many as query heads unless given
    ffn: int | None = None             # hidden features of the MLP; 4 h, or 8 h / 3 rounded up, unless given
    context: int = 1024                # most positions (gpt2: it has learned that many)
    dropout: float = 0.0               # gpt2: of the embedding, the attention's probabilities and both branches
    rope_base: float = 10000.0         # llama
    epsilon: float = 1e-5              # in the norms
    attention: str = "naive"           # how, not what: "blockwise" gives the same numbers with less memory
    recompute: str = "none"            # likewise: "selective" (the attention's core) or "full" (the block)
    experts: int = 0                   # in every layer, in place of its MLP; 0: a dense model, and none of what follows
    top_k: int = 1                     # how many of them a token uses
    expert_ffn: int | None = None      # hidden features of each; as many as ffn unless given
    shared_experts: int = 0            # more of the same size, which every token uses
    router: str = SOFTMAX_FIRST        # "softmax-topk", "topk-softmax" or "sigmoid": see router.py
    balance: float = 0.0               # coefficient of the auxiliary loss
    bias_rate: float = 0.0             # what a step changes the router's bias by; 0: it has none
    capacity_factor: float | None = None       # times the mean load, of each sequence; None: nothing is dropped
    min_capacity: int = 0
    drop: str = BY_POSITION            # who stays when an expert is full: the first, or by "probability" the heaviest

    def __post_init__(self):
        set_ = lambda name, value: object.__setattr__(self, name, value)
        for name, known in (("family", FAMILIES), ("attention", ATTENTIONS), ("recompute", RECOMPUTE),
                            ("router", ROUTERS), ("drop", DROPS)):
            value = getattr(self, name)
            if value not in known:
                nearest = difflib.get_close_matches(str(value), known, n=1, cutoff=0.0)[0]
                raise ValueError(f"{name}={value!r}: expected one of {', '.join(known)}; nearest {nearest!r}")
        if self.kv_heads is None:
            set_("kv_heads", self.heads)
        if self.ffn is None:
            set_("ffn", 4 * self.hidden if self.family == "gpt2" else -(-8 * self.hidden // 3))
        if self.expert_ffn is None:
            set_("expert_ffn", self.ffn)
        for name, least in (("vocabulary", 1), ("hidden", 1), ("layers", 0), ("heads", 1), ("kv_heads", 1), ("ffn", 1),
                            ("context", 1), ("experts", 0), ("top_k", 1), ("expert_ffn", 1), ("shared_experts", 0),
                            ("balance", 0), ("bias_rate", 0), ("min_capacity", 0)):
            value = getattr(self, name)
            if name not in ("balance", "bias_rate") and (isinstance(value, bool) or not isinstance(value, Integral)):
                raise ValueError(f"{name}={value!r}: expected a whole number, {least} or more")
            if not value >= least:
                raise ValueError(f"{name}={value}: expected {least} or more; nearest {least}")
        _divides("heads", self.heads, "hidden", self.hidden)
        _divides("kv_heads", self.kv_heads, "heads", self.heads)
        if self.family == "llama" and self.head % 2:
            even = [heads for heads in _divisors(self.hidden) if self.hidden // heads % 2 == 0]
            raise ValueError(f"heads={self.heads} of hidden={self.hidden} have {self.head} features each, and rotary "
                             f"positions need an even number; heads may be {_listed(even)}")
        for name in ("rope_base", "epsilon"):
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name}={value}: expected more than 0; usual is {getattr(Config, name):g}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout}: expected at least 0 and less than 1")
        if self.dropout and self.family == "llama":
            raise ValueError(f"dropout={self.dropout}: a Llama-style model has none; expected 0, or family='gpt2'")
        if self.experts:
            self._check_experts()

    def _check_experts(self):
        if self.top_k > self.experts:
            raise ValueError(f"top_k={self.top_k}: there are experts={self.experts}, and a token uses each at most "
                             f"once; nearest {self.experts}")
        if self.top_k == 1 and self.router != SOFTMAX_FIRST:
            raise ValueError(f"router={self.router!r} with top_k=1: a single weight is always 1, and the router would "
                             f"not learn; expected router={SOFTMAX_FIRST!r}, or top_k of 2 or more")
        if self.capacity_factor is not None and not 0 < self.capacity_factor < math.inf:
            raise ValueError(f"capacity_factor={self.capacity_factor}: expected a finite number above 0, such as 1.0, "
                             "or None to drop nothing")

    @property
    def head(self):
        """Features of one head, d."""
        return self.hidden // self.heads

    @property
    def group(self):
        """Query heads that share one key-value head, g."""
        return self.heads // self.kv_heads

    @property
    def tied(self):
        """Whether the output table is the input's."""
        return self.family == "gpt2"

    @property
    def activation(self):
        """The MLP's, and the experts'."""
        return "gelu" if self.family == "gpt2" else "swiglu"


def block_shapes(config):
    """Shapes of one block's parameters: dict by name, without the block's own prefix."""
    h, n, parts, d, f = config.hidden, config.kv_heads, config.group + 2, config.head, config.ffn
    gpt2 = config.family == "gpt2"
    shapes = {
        "norm1.w": (h,), "norm1.b": (h,),
        "attention.wqkv": (h, n, parts, d), "attention.bqkv": (n, parts, d),
        "attention.wo": (h, h), "attention.bo": (h,),
        "norm2.w": (h,), "norm2.b": (h,),
    }
    if config.experts:
        shapes |= {f"moe.{name}": shape for name, shape in expert_shapes(config).items()}
    else:
        shapes |= {"mlp.w1": (h, f) if gpt2 else (h, 2, f), "mlp.b1": (f,), "mlp.w2": (f, h), "mlp.b2": (h,)}
    return {name: shape for name, shape in shapes.items() if gpt2 or not is_bias(name)}


def expert_shapes(config):
    """Shapes of one mixture of experts: dict by name."""
    h, E, f = config.hidden, config.experts, config.expert_ffn
    first = lambda features: (h, features) if config.family == "gpt2" else (h, 2, features)
    shapes = {"router": (h, E), "w1": (E, *first(f)), "w2": (E, f, h)}
    if config.shared_experts:
        together = config.shared_experts * f
        shapes |= {"shared.w1": first(together), "shared.w2": (together, h)}
    return shapes


def shapes(config):
    """Shapes of all parameters: dict by name, in the order in which the model uses them."""
    V, h = config.vocabulary, config.hidden
    found = {"embedding.tokens": (V, h)}
    if config.family == "gpt2":
        found["embedding.positions"] = (config.context, h)
    for layer in range(config.layers):
        found |= {f"blocks.{layer}.{name}": shape for name, shape in block_shapes(config).items()}
    found["norm.w"] = (h,)
    if config.family == "gpt2":
        found["norm.b"] = (h,)
    if not config.tied:
        found["head.tokens"] = (V, h)
    return found


def init(config, rng, dtype="float64"):
    """Fresh parameters, host arrays, as GPT-2's: normal weights of deviation 0.02, norms 1, biases 0.

    rng    numpy.random.Generator; the same one gives the same parameters on every rank and every library
    ->     dict by name. What is added to the residual stream (wo, w2) is drawn 1/sqrt(2 layers) as large.
    """
    parameters = {}
    for name, shape in shapes(config).items():
        xp = array_namespace(rng.standard_normal(0))
        if is_bias(name):
            parameters[name] = xp.zeros(shape, dtype)
        elif "norm" in name:
            parameters[name] = xp.ones(shape, dtype)
        else:
            small = 1 / math.sqrt(2 * config.layers) if name.endswith(("wo", "w2")) else 1
            parameters[name] = (0.02 * small * rng.standard_normal(shape)).astype(dtype)
    return parameters


def check_parameters(parameters, expected, who="the model has", hint=""):
    """ValueError unless there is an array of each of these shapes, by name. A bias that is missing would go unnoticed.

    parameters    dict by name, others may be in it, too    expected    dict of shapes by name
    """
    for name, shape in expected.items():
        found = parameters[name].shape if name in parameters else "missing"
        if found != shape:
            raise ValueError(f"{name} is {found}, but {who} {shape}{hint}")
        if parameters[name].dtype.kind not in "fu":                              # u: bfloat16, see precision.py
            raise ValueError(f"{name} has dtype {parameters[name].dtype}; expected a float: {name}.astype('float32')")


def is_bias(name):
    """Whether the parameter of this name is a bias: b, b1, bqkv ..."""
    return name.rpartition(".")[2].startswith("b")


def of_block(parameters, layer):
    """One block's part of the whole model's parameters: the same arrays, by their names inside the block."""
    prefix = f"blocks.{layer}."
    return {name.removeprefix(prefix): p for name, p in parameters.items() if name.startswith(prefix)}


def _divides(name, value, of, whole):
    if whole % value:
        raise ValueError(f"{name}={value} does not divide {of}={whole}; {name} may be {_listed(_divisors(whole))}")


def _divisors(n):
    return [k for k in range(1, n + 1) if n % k == 0]


def _listed(numbers):
    *most, last = map(str, numbers) if numbers else ["no number"]
    return f"{', '.join(most)} or {last}" if most else last
