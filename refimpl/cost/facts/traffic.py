"""Claims about what is sent."""

from refimpl.cost import traffic
from refimpl.cost.facts import claim, close, verdict
from refimpl.cost.memory import layer_activations

KORTHIKANTI = "Korthikanti et al. 2022, section 4.2.2"
B, S, H, T = 1, 2048, 12288, 8             # one layer of GPT-3 on 8 tensor-parallel ranks


def block(**options):
    """Elements that a rank sends for that layer in a step."""
    return sum(traffic.tensor_parallel_block(B, S, H, T, 0, **options).values())


@claim("b", "Megatron's sequence parallelism cuts the traffic of tensor parallelism", KORTHIKANTI)
def sequence_parallel():
    """It cuts memory."""
    plain, cut = block(), block(sequence_parallel=True)
    kept, less = (layer_activations(S, B, H, 96, T, sequence_parallel=cut_too, recompute="selective")
                  for cut_too in (False, True))
    return (verdict(cut < plain), cut / plain, "times the bytes of TP alone",
            f"4 all-reduces become 4 all-gathers and 4 reduce-scatters, which send as much, and backward gathers the "
            f"input of each block again: {cut:,} elements a rank and layer, {plain:,} without. What it cuts is memory: "
            f"{kept / 1e6:.0f} to {less / 1e6:.0f} MB a layer, 10 + 24/t to 34/t bytes")


@claim("e", "A transformer layer needs exactly 2 all-reduces", "Shoeybi et al. 2019, section 3; Narayanan et al. 2021, "
       "section 2.3; with full recomputation: Rajbhandari et al. 2020, section 8")
def all_reduces():
    """Two each way."""
    one = traffic.ring_all_reduce(B * S * H, T, 0)
    forward = traffic.tensor_parallel_block(B, S, H, T, 0)["forward"] // one
    step, again = block() // one, block(recompute="full") // one
    return (verdict(forward == 2, step == 2), step, "all-reduces a step",
            f"{forward} in forward, {step - forward} in backward: {step} a step; {again} with full recomputation; "
            "beside them those of embedding, logits and loss")


@claim("l", "The gradient all-reduce of a 70B model is 140 GB per rank, twice", "Patarasuk & Yuan 2009; Megatron-LM: "
       "accumulate_allreduce_grads_in_fp32")
def gradient_all_reduce():
    """Of bfloat16 gradients, unsharded."""
    N, n = 64, 70 * 10**9
    sent = traffic.ring_all_reduce(n, N, 0)
    shard = traffic.ring_all_reduce(n // 32, N, 0)
    always = {4 * sent, 2 * shard} == {2 * sent}                   # in float32, and where tp and pp cut the model
    return (verdict(close(2 * sent / 1e9, 2 * 140, 0.02), always), 2 * sent / 1e9,
            "GB sent by a rank, N = 64", f"a buffer of {2 * n / 1e9:.0f} GB in bfloat16; a ring sends 2 (N-1)/N of it, "
            f"{2 * sent / 1e9:.1f} GB, and receives as much. In float32 {4 * sent / 1e9:.0f} GB. With TP 8 x PP 4 a "
            f"rank has 1/32: {2 * n / 32 / 1e9:.1f} GB, of which it sends {2 * shard / 1e9:.1f}")


@claim("n", "ZeRO 3 communicates 50% more than data parallelism, by volume and micro-batch",
       "Rajbhandari et al. 2020, section 7.2.2")
def zero3_volume():
    """3 psi to 2 psi."""
    N, units = 64, [64 * 10**6]
    def volume(stage, k):
        sent = traffic.zero_step(units, N, 0, stage, k)
        return sent["gradients"] + sent["parameters"]
    more = volume(3, 1) / volume(0, 1)
    return (verdict(close(more, 1.5)), more, "times the volume",
            f"3 psi to 2 psi: two gathers and a reduce-scatter to one all-reduce. Not a statement about time; and with "
            f"8 micro-batches {volume(3, 8) / volume(0, 8):.0f}x, as data parallelism reduces once a step")


@claim("o", "Column-parallel layers need no communication",
       "Shoeybi et al. 2019, section 3: the conjugate operators f, g")
def column_parallel():
    """Not in forward."""
    parts = traffic.tensor_parallel_mlp(B * S, H, H, T, 0)
    return (verdict(True, parts["backward"] == 0), parts["backward"], "elements a rank sends in backward",
            f"none in forward, unless the output is gathered. Backward sums the input's gradient over the ranks: "
            f"{parts['backward']:,} elements each for one layer, b s = {B * S}, h = {H}, t = {T}")


@claim("s", "Row-parallel weights are [W1; W2] transposed", "Shoeybi et al. 2019, section 3")
def row_parallel():
    """Rows stacked; tried on the smallest matrices."""
    x, w1, w2 = [[1, 2, 3, 4]], [[5, 6, 7], [8, 9, 10]], [[11, 12, 13], [14, 15, 16]]
    times = lambda a, b: [[sum(p * q for p, q in zip(row, column, strict=True)) for column in zip(*b)] for row in a]
    halves = [times([x[0][:2]], w1)[0], times([x[0][2:]], w2)[0]]
    summed, stacked = [sum(pair) for pair in zip(*halves)], w1 + w2
    transposed = [list(column) for column in zip(*stacked)]
    return (verdict(len(transposed) == len(x[0])), len(stacked), "rows of the whole matrix, of 2 + 2",
            f"x (1, 4) times [W1; W2] ({len(stacked)}, {len(stacked[0])}), rows stacked, no transpose: "
            f"{times(x, stacked)[0]} = x1 W1 + x2 W2 = {summed}, x cut by columns. The transpose is "
            f"({len(transposed)}, {len(transposed[0])}): x does not even fit")


@claim("64-mib", "An all-reduce of one micro-batch of 4096 tokens, h = 8192, in 2 bytes is 64 MiB",
       "Shoeybi et al. 2019, section 3: b s h")
def message():
    """b s h."""
    size = 1 * 4096 * 8192 * 2 / 2**20
    sent = 2 * traffic.ring_all_reduce(4096 * 8192, 8, 0) / 2**20
    return (verdict(size == 64), size, "MiB",
            f"4096 x 8192 x 2 bytes = {size:.0f} MiB of message; each of 8 ranks sends "
            f"2 x 7/8 of it, {sent:.0f} MiB, four times a layer")


@claim("ring-volume", "A ring all-reduce sends 2 (N-1)/N of the array per rank", "Patarasuk & Yuan 2009")
def ring_volume():
    """Counted in the ring's chunks."""
    N, n = 8, 8 * 10**6
    sent = {traffic.ring_all_reduce(n, N, rank) for rank in range(N)}
    share = max(sent) / n
    return (verdict(sent == {2 * n * (N - 1) // N}), share, "times the array, N = 8",
            f"N-1 chunks of 1/N to reduce, N-1 to gather: {share:.4g} of the array, below 2 for any N, in "
            f"{traffic.ring_messages(N, 2)} messages")
