"""What is held: parameters of a transformer, exactly, and the bytes of activations that a layer keeps for its backward.

    parameters of a layer    h (h + 2 n d) + h^2 + m h f        m = 2 matrices of an MLP, 3 gated;    + biases, norms
    kept by a layer          s b h (34 + 5 a s/h)               GPT-2 style in float16, dropout masks of 1 byte

    of those 34              norms 4    attention's input 2, q k v 6, context 2, mask 1    MLP's input 2, ffn 16, mask 1
    tensor parallel          10 + 24/t: what lies inside the two blocks is cut, their inputs, norms and masks are not
    with sequence parallel   34/t: those are cut along the sequence
    recomputed selectively   the 5 a s/h, the probabilities, goes;        in full: 2, only the layer's input stays

Nothing here has seen an array: the tests compare these numbers with what the meter counted, and allow no difference.
The two numbers per position that a norm keeps, and attention's one per row, are named apart, as papers leave them out.
(Korthikanti et al. 2022, table 2; parameters: Narayanan et al. 2021, equation 2, which leaves out the last norm.)
Letters: s sequence, b micro-batch, h hidden, a query heads, n key-value heads, d = h/a, f ffn, V vocabulary, t tensor-
parallel ranks. Sizes are elements or, where it says so, bytes.
"""

from refimpl.cost.listing import divisors, listed
from refimpl.cost.traffic import chunk, padded


def layer_parameters(hidden, heads, ffn=None, kv_heads=None, gated=False, bias=True, norm_bias=None):
    """Parameters of one layer, by part: {"attention": ..., "mlp": ..., "norms": ...}.

    ffn        hidden features of the MLP, any whole number; 4 h unless given
    kv_heads   key-value heads; as many as query heads unless given: fewer make the key and value matrices smaller only
    gated      a SwiGLU MLP of three matrices
    bias       of every linear layer; norm_bias: of the norms, as `bias` unless given
    """
    h, f, norm_bias = hidden, 4 * hidden if ffn is None else ffn, bias if norm_bias is None else norm_bias
    kv = h // heads * (heads if kv_heads is None else kv_heads)
    ups = 2 if gated else 1
    return {
        "attention": h * (h + 2 * kv) + h * h + (h + 2 * kv + h if bias else 0),
        "mlp": ups * h * f + f * h + (ups * f + h if bias else 0),
        "norms": 2 * h * (2 if norm_bias else 1),
    }


def parameters(hidden, layers, heads, vocabulary, ffn=None, kv_heads=None, gated=False, tied=True, bias=True,
               positions=0, norm_bias=None):
    """Parameters of a whole model, by part, exactly: {"embedding", "attention", "mlp", "norms", "head", "total"}.

    positions   how many learned position embeddings there are: 0 with rotary positions
    tied        the output table is the embedding's, and counts once
    the others  as in layer_parameters
    """
    layer = layer_parameters(hidden, heads, ffn, kv_heads, gated, bias, norm_bias)
    found = {
        "embedding": (vocabulary + positions) * hidden,
        **{part: layers * count for part, count in layer.items()},
        "head": 0 if tied else vocabulary * hidden,
    }
    found["norms"] += layer["norms"] // 2                                          # the last one
    return found | {"total": sum(found.values())}


def layer_activations(s, b, h, a, t=1, sequence_parallel=False, recompute="none", kv_heads=None, ffn=None, gated=False,
                      dropout=True, blockwise=False, rank=0, item=2):
    """Bytes that one layer keeps on one rank from its forward to its backward, norm statistics apart.

    s, b, h, a    sequence, micro-batch, hidden, query heads          t    tensor-parallel ranks
    recompute     "none" | "selective" | "full"                       item    bytes of an element: 2 for float16
    dropout       masks of a byte each and a second copy of the probabilities
    blockwise     attention keeps one float32 per row (wider for float64) and no probabilities
    rank          which rank: shards of the MLP may be uneven
    Full recomputation keeps the layer's input, whole on every rank (cut if sequence-parallel).
    Raises ValueError for sizes that cannot be cut, naming what works.
    """
    n, d = a if kv_heads is None else kv_heads, h // a
    _check(s, h, a, n, t, sequence_parallel, recompute)
    tokens = s * b
    outside = tokens // t if sequence_parallel else tokens               # tokens of what is not inside the two blocks
    if recompute == "full":
        return outside * h * item
    query_heads, kv = a // t, max(n // t, 1)                             # on this rank; kv heads are shared when t > n
    inside = (query_heads + 2 * kv) * d + query_heads * d                # q k v, context
    inside += chunk(4 * h if ffn is None else ffn, t, rank) * (3 if gated else 2)
    return (outside * h * (4 * item + (2 if dropout else 0))
            + tokens * inside * item
            + _core(s, b, query_heads, recompute, dropout, blockwise, item))


def _core(s, b, heads, recompute, dropout, blockwise, item):
    """Bytes of what attention keeps beside q, k, v and its output."""
    if recompute == "selective":
        return 0
    if blockwise:
        return s * b * heads * max(item, 4)
    return s * s * b * heads * (2 * item + 1 if dropout else item)


def layer_statistics(s, b, t=1, sequence_parallel=False, recompute="none", norm="layer", item=2):
    """Bytes of the statistics that a layer's two norms keep: a mean (norm="layer") and a scale, float32 or wider."""
    if recompute == "full":
        return 0
    return 2 * (s * b // t if sequence_parallel else s * b) * (2 if norm == "layer" else 1) * max(item, 4)


def _check(s, h, a, n, t, sequence_parallel, recompute):
    """ValueError for what cannot be cut, naming what works."""
    for name, value, of, whole in (("heads", a, "hidden", h), ("kv_heads", n, "heads", a), ("tp", t, "heads", a)):
        if value < 1 or whole % value:
            raise ValueError(f"{name}={value} does not divide {of}={whole}; {name} may be {divisors(whole)}")
    if n % t and t % n:
        works = [k for k in range(1, a + 1) if a % k == 0 and (n % k == 0 or k % n == 0)]
        raise ValueError(f"kv_heads={n} are neither cut nor shared evenly by tp={t}; tp may be {listed(works)}")
    if sequence_parallel and s % t:
        raise ValueError(f"sequence={s} is not divisible by tp={t}; tp may be {divisors(s)}")
    if recompute not in ("none", "selective", "full"):
        raise ValueError(f"recompute={recompute!r}: expected one of none, selective, full")


# Model states: what a rank holds whatever the batch is


def model_states(units, N, stage, parameter=2, gradient=2, optimizer=12, alignment=None):
    """Bytes that one of N ranks holds at rest under ZeRO: {"parameters", "gradients", "optimizer"}, padding included.

        stage 0    16 psi                  1    4 psi + 12 psi/N        2    2 psi + 14 psi/N        3    16 psi/N

    units        elements of each, without padding: a bucket's, in stage 3 a layer's; psi is their padded sum
    parameter, gradient, optimizer    bytes an element: 2 2 12 in mixed precision (float32 master, m and v), with
                 float32 gradients 2 4 12, all in float32 4 4 8
    (Rajbhandari et al. 2020, section 5 and figure 1.)
    """
    psi = sum(padded(n, N if stage else 1, alignment) for n in units)
    share = psi // N
    return {
        "parameters": parameter * (share if stage == 3 else psi),
        "gradients": gradient * (share if stage >= 2 else psi),
        "optimizer": optimizer * (share if stage >= 1 else psi),
    }


def model_states_peak(units, N, stage, parameter=2, gradient=2, optimizer=12, alignment=None, buffers=2, gathered=2):
    """The same at its largest, in backward, which goes through the units from the last to the first.

    Stages 2 and 3 have whole gradients of `buffers` units beside it: that of the unit at hand, and those before it, on
    their way. Stage 3 has the parameters of `gathered` units: the one at hand, and the next ones, on their way. So the
    widest neighbours count, not the whole model. No table is tied.
    """
    sizes = [padded(n, N if stage else 1, alignment) for n in units]
    more = [(parameter * sum(sizes[max(u - gathered + 1, 0):u + 1]) if stage == 3 else 0,
             gradient * sum(sizes[u:u + buffers]) if stage >= 2 else 0) for u in range(len(sizes))]
    parameters, gradients = max(more, key=sum, default=(0, 0))
    rest = model_states(units, N, stage, parameter, gradient, optimizer, alignment)
    return rest | {"parameters": rest["parameters"] + parameters, "gradients": rest["gradients"] + gradients}
