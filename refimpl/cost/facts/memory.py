"""Claims about memory."""

from refimpl.cost import context, memory
from refimpl.cost.facts import claim, close, verdict
from refimpl.cost.footprint import footprint
from refimpl.cost.hardware import find as gpu
from refimpl.cost.models import find as model
from refimpl.cost.states import States
from refimpl.cost.training import Training
from refimpl.layout import Layout

ZERO = "Rajbhandari et al. 2020"


@claim("g", "Ring attention has O(1) memory per rank", "Liu et al. 2023, table 1: 6 b c h a layer, c = s/P")
def ring_memory():
    """What a rank keeps of a layer: queries, output, and two blocks of keys and values."""
    b, h, heads = 1, 8192, 64
    def held(s, P):
        return 2 * (2 * b * s // P * h + 2 * context.kv_block(b, s, heads, h // heads, P))
    s, P = 131072, 8
    grows = held(2 * s, P) / held(s, P)
    return (verdict(held(2 * s, 2 * P) == held(s, P), grows == 1), grows, "times the memory for twice the sequence",
            f"6 b (s/P) h elements of 2 bytes, s = {s}, P = {P}, h = {h}: {held(s, P) / 1e9:.2f} GB a layer; twice s "
            f"on the same ranks {held(2 * s, P) / 1e9:.2f} GB. It is O(s/P): constant only if P grows with s")


@claim("h", "ZeRO 1 saves 4x, ZeRO 2 saves 8x", f"{ZERO}, section 5 and figure 1")
def zero_savings():
    """Limits of infinitely many ranks."""
    saves = lambda stage, ranks, dtype=None: States(grad_dtype=dtype).bytes / States(
        grad_dtype=dtype, zero=stage).per_parameter(ranks)
    one, two = saves(1, 64), saves(2, 64)
    limits = close(saves(1, 10**9), 4) and close(saves(2, 10**9), 8)
    return (verdict(limits, close(one, 4) and close(two, 8)), round(two, 4), "x, ZeRO 2 on 64 ranks",
            f"limits for infinitely many ranks. 16 / (4 + 12/N), 16 / (2 + 14/N): on 8 ranks {saves(1, 8):.2f}x and "
            f"{saves(2, 8):.2f}x, on 64 {one:.2f}x and {two:.2f}x. With float32 gradients ZeRO 1 tends to "
            f"{saves(1, 10**9, 'float32'):.0f}x")


@claim("i", "70B with ZeRO 3 on 16 GPUs takes 70 GB each, and fits an H100 of 80 GB",
       f"{ZERO}, section 3: residual states; DeepSpeed, estimate_zero3_model_states_mem_needs: 79.69 GB")
def zero3_on_sixteen():
    """States, and what comes on top."""
    card, seventy = gpu("h100"), 70e9
    states = memory.model_states([int(seventy)], 16, 3)
    held = sum(states.values()) / 1e9
    run = Training(model("llama2-70b"), Layout(dp=16), zero=3, recompute="full", flash=True)
    total = footprint(run, card)
    without = Training(model("llama2-70b"), Layout(dp=16), zero=3, flash=True)
    kept = footprint(without).kinds(0)["activations"]
    return (verdict(close(held, 70), close(total.total() / 1e9, 70, 0.05)), total.total() / 1e9, "GB of 85.5",
            f"16 x 70e9 / 16 = {held:.1f} GB are model states; at 18 bytes {18 * seventy / 16 / 1e9:.2f} GB. Llama 2 "
            f"70B, 4096 positions, all recomputed, adds {total.kinds(0)['activations'] / 1e9:.2f} GB of checkpoints, "
            f"{total.kinds(0)['gathered'] / 1e9:.2f} of gathered layers and gradients, "
            f"{total.kinds(0)['logits'] / 1e9:.2f} of logits, {total.kinds(0)['working'] / 1e9:.2f} of one layer: "
            f"{total.total() / 1e9:.1f} of {card.memory / 1e9:.1f} GB with the reserve, nothing to spare. Without "
            f"recomputation {kept / 1e9:.0f} GB of activations alone")


@claim("r", "A 70B float16 model requires 1.12 TB of training memory", f"{ZERO}, section 3")
def training_memory():
    """States alone, and with float16 gradients."""
    small, wide = (States(grad_dtype=dtype).bytes * 70 for dtype in (None, "float32"))
    run = Training(model("llama2-70b"), flash=True)
    kept = footprint(run).kinds(0)["activations"] / 1e9
    return (verdict(small == 1120, kept == 0 and wide == small), wide, "GB of states with float32 gradients",
            f"16 x 70e9 = {small} GB are model states with float16 gradients; float32 gradients make them {wide} GB. "
            f"Activations come on top: one sequence of 4096 in Llama 2 70B, {kept:.0f} GB without recomputation")


@claim("16-psi", "Mixed-precision Adam with gradients of 2 bytes takes 16 bytes a parameter", f"{ZERO}, section 3.1")
def sixteen_bytes():
    """2 + 2 + 12."""
    states = States("float16")
    return (verdict(states.bytes == 16), states.bytes, "bytes a parameter",
            f"weights {states.item} + gradients {states.gradients} + optimizer {states.optimizer}, with float16 "
            f"gradients; float32 gradients make it {States('float16', 'float32').bytes}, both at once "
            f"{States('float16', 'both').bytes}")


@claim("1120-gb", "The model states of 70B parameters are 1120 GB at 16 bytes each", f"{ZERO}, section 3.1")
def seventy_billion():
    """16 x 70."""
    held = sum(memory.model_states([70 * 10**9], 1, 0).values()) / 1e9
    return verdict(held == 1120), held, "GB", f"16 bytes x 70e9 = {held:.0f} GB, before activations"
