"""The cases of lesson 11: published runs and the design question, with the layout that each begins with.

A layout that was published is the one that its paper prints; what it leaves open (recomputation, chunks, ZeRO's stage
in our terms) is our choice; `notes` says what is whose.
"""

from dataclasses import dataclass, field

from refimpl.cost.hardware import find as find_gpu
from refimpl.cost.models import change
from refimpl.cost.models import find as find_model
from refimpl.cost.training import Training
from refimpl.layout import Layout


@dataclass(frozen=True)
class Case:
    """A model, a machine, a batch; start: settings of `training` to begin with"""

    model: str
    gpu: str
    gpus: int
    batch: int
    sequence: int
    flash: bool
    start: dict = field(hash=False)
    notes: str = ""


CASES = {
    "GPT-3 175B on 1024 A100": Case(
        "gpt3-175b", "a100-80gb", 1024, 1536, 2048, False,
        dict(tp=8, pp=8, zero=1, chunks=3, recompute="selective"),
        "layout not published; TP 8 x PP 8 divides 1024 as the paper's own 8 x 12 does not"),
    "409B experts on 1024 H100": Case(
        "moe-409b", "h100-sxm", 1024, 1024, 4096, True,
        dict(tp=2, pp=16, ep=8, expert_tp=1, zero=1, chunks=5, recompute="none"), "a design question, nobody's run"),
    "Llama-3 405B, 8k, on 16,384 H100": Case(
        "llama3-405b", "h100-sxm", 16384, 2048, 8192, True,
        dict(tp=8, pp=16, zero=2, chunks=4, recompute="none"),
        "TP 8 x CP 1 x PP 16 x DP 128 as published; FSDP that keeps the weights: ZeRO 2 is nearest"),
    "Llama-3 405B, 131k, on 16,384 H100": Case(
        "llama3-405b", "h100-sxm", 16384, 128, 131072, True,
        dict(tp=8, cp=16, pp=16, zero=2, chunks=4, recompute="none"),
        "TP 8 x CP 16 x PP 16 x DP 8 as published; FSDP that keeps the weights: ZeRO 2 is nearest"),
    "DeepSeek-V3 on 2048 H800": Case(
        "deepseek-v3", "h800", 2048, 15360, 4096, True,
        dict(tp=1, pp=16, ep=64, zero=1, chunks=1, recompute="full"),
        "PP 16 x EP 64 x ZeRO 1 as published; 1F1B in bfloat16 here, DualPipe and FP8 there"),
}
FIRST = next(iter(CASES))


def training_of(case, tp=1, pp=1, cp=1, ep=1, expert_tp=0, zero=0, chunks=1, micro_batch=1, recompute="none",
                gpus=1.0, sequence=1.0):
    """The `Training` of a `Case` under these settings; dp is what the GPUs leave. ValueError for what does not fit.

    expert_tp    0: tp    gpus, sequence    times those of the case; the batch has as many tokens as before
    """
    count, length = round(case.gpus * gpus), round(case.sequence * sequence)
    if count % (tp * pp * cp):
        raise ValueError(f"tp {tp} x pp {pp} x cp {cp} = {tp * pp * cp} does not divide {count:,} GPUs")
    dp, batch = count // (tp * pp * cp), max(round(case.batch / sequence), 1)
    if batch % (dp * micro_batch):
        raise ValueError(f"{batch:,} sequences do not divide into micro-batches of {micro_batch} on dp = {dp} replicas")
    model = find_model(case.model)
    if model.positions:
        model = change(model, positions=max(model.positions, length))
    gpu = find_gpu(case.gpu)
    layout = Layout(dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, expert_tp=expert_tp or None, node_size=gpu.node_size)
    return Training(model, layout, length, micro_batch, batch // (dp * micro_batch),
                    "interleaved" if chunks > 1 else "1f1b", chunks, tp > 1, zero=zero, recompute=recompute,
                    flash=case.flash, grad_dtype="float32")
