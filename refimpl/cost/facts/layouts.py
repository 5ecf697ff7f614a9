"""Claims about layouts and machines."""

from refimpl.cost.facts import claim, close, verdict
from refimpl.cost.footprint import footprint, held_parameters
from refimpl.cost.hardware import find as gpu
from refimpl.cost.models import find as model
from refimpl.cost.states import States
from refimpl.cost.training import Training
from refimpl.layout import Layout


@claim("a", "GPT-3 175B was trained on 1024 A100 as DP 64 x TP 8 x PP 2",
       "Brown et al. 2020, section 2.3: V100, degrees not published; Narayanan et al. 2021, section 5.1: 1024 A100 is "
       "a time estimate, 34 days at 140 TFLOP/s, and table 2: their own runs have model-parallel size 96")
def gpt3_layout():
    """The layout would need ZeRO 1 to fit."""
    layout, a100 = Layout(dp=64, tp=8, pp=2), gpu("a100-80gb")
    held = model("gpt3-175b").parameters / (layout.tp * layout.pp)
    plain, sharded, wide = (held * States(zero=zero, grad_dtype=dtype).per_parameter(64) / 1e9
                            for zero, dtype in ((0, None), (1, None), (1, "float32")))
    return (verdict(layout.world == 1024 and plain * 1e9 <= a100.memory), plain, "GB of model states a GPU",
            f"64 x 8 x 2 = {layout.world} is arithmetic. With TP 8 x PP 2 a GPU holds {held / 1e9:.1f}e9 parameters: "
            f"{plain:.0f} GB at 16 bytes, of {a100.memory / 1e9:.1f} GB. Only ZeRO 1 makes it fit: (4 + 12/64) bytes "
            f"are {sharded:.1f} GB, with float32 gradients (6 + 12/64) {wide:.1f} GB")


@claim("f", "A 409B mixture of experts on 1024 H100: TP 8 x EP 8 x PP 8 with DP 16, experts within the NVSwitch domain",
       "Megatron-LM, parallel_state.py: data parallel = world / (tp pp cp), expert dp = world / (etp ep pp)")
def moe_layout():
    """EP does not multiply; where its groups lie depends on expert_tp."""
    sizes = {"dp": 16, "tp": 8, "pp": 8, "ep": 8}
    folded, usual = Layout(**sizes, expert_tp=1), Layout(**sizes)
    domain = gpu("h100-sxm").domain_size
    nodes = {layout.expert_tp: len({rank // domain for rank in layout.group("ep", 0)}) for layout in (folded, usual)}
    product = 16 * 8 * 8 * 8
    return (verdict(product == 1024 and nodes[8] == 1), usual.world, "GPUs of TP 8 x PP 8 x DP 16",
            f"TP 8 x PP 8 x DP 16 = {usual.world}; times EP it would be {product}, but EP arranges the same ranks "
            f"anew. With expert_tp 8 an EP group is on {nodes[8]} nodes, since TP fills a node, and expert DP is "
            f"{usual.size('expert_dp')}; with expert_tp 1 it is on {nodes[1]}, and expert DP is "
            f"{folded.size('expert_dp')}")


@claim("k", "NVLink of an H100 has 900 GB/s",
       "How to Scale Your Model, GPU chapter: 18 links of 25 GB/s each way")
def nvlink():
    """Both ways together."""
    each = gpu("h100-sxm").link("domain").bandwidth / 1e9
    return (verdict(close(2 * each, 900), each == 900), each, "GB/s each way",
            f"18 links x 25 GB/s = {18 * 25} GB/s each way; {2 * each:.0f} adds both ways. What a GPU sends in an "
            f"all-reduce goes one way: {each:.0f} bounds it. A100: {gpu('a100').fabric.bandwidth / 1e9:.0f}, "
            f"B200: {gpu('b200').fabric.bandwidth / 1e9:.0f}")


@claim("p", "Models above 100B parameters need ZeRO 3 (FSDP)",
       "Narayanan et al. 2021, table 1: 529.6B on 2520 A100 as TP 8 x PP 35 x DP 9, parameters whole; DeepSeek-V3, "
       "671B: PP x EP with ZeRO 1")
def without_zero():
    """A counterexample that ran, and fits."""
    big, a100 = model("megatron-529.6b"), gpu("a100-80gb")
    run = Training(big, Layout(dp=9, tp=8, pp=35), microbatches=280, schedule="interleaved", chunks=3, recompute="full",
                   grad_dtype="float32")
    held = footprint(run, a100).total()
    return (verdict(held > a100.memory), held / 1e9, "GB on the worst GPU, 529.6B without ZeRO",
            f"TP 8 x PP 35 leaves {held_parameters(run, 0)['dense'] / 1e9:.2f}e9 of {big.parameters / 1e9:.1f}e9 "
            f"parameters on the first GPU; states at 18 bytes, full recomputation and buffers are {held / 1e9:.1f} of "
            f"{a100.memory / 1e9:.1f} GB. ZeRO 3 is one way, not the only one")


@claim("dp-16", "1024 GPUs with TP 8 x PP 8 leave DP = 16", "Narayanan et al. 2021, section 3.1: n = p t d")
def data_parallel_size():
    """What is left."""
    left = 1024 // (8 * 8)
    return (verdict(left == 16 and Layout(dp=left, tp=8, pp=8).world == 1024), left, "data-parallel ranks",
            f"1024 / (8 x 8) = {left}; context parallelism would divide it further, expert parallelism not")
