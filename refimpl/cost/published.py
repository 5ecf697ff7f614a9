"""Runs that papers have timed on A100s, and what step.py says that they take: one set of constants, nothing fitted.

    Korthikanti et al. 2022, tables 3 and 5      everything is given: seconds of an iteration, full recomputation, and
                                                 sequence parallelism with selective recomputation
    Narayanan et al. 2021, table 1               micro-batch and interleaving are not given: of those that fit the
                                                 memory the fastest is taken, as the authors do (section 3.4). FLOP/s
                                                 a GPU, the recomputed ones counted, become seconds by their equation 3

Neither overlapped sums over replicas with backward. Gradients are summed in float16 in the earlier one (16 bytes a
parameter), in float32 in the later.
"""

from dataclasses import dataclass, replace
from statistics import median

from refimpl.cost import models
from refimpl.cost.footprint import worst_stage
from refimpl.cost.hardware import find
from refimpl.cost.step import step
from refimpl.cost.training import Training
from refimpl.layout import Layout

GPU = "a100-80gb"
KORTHIKANTI = (                            # model, tp, pp, chunks, micro-batch, batch, seconds full and selective
    ("megatron-22b", 8, 1, 1, 4, 4, 1.42, 1.10),
    ("gpt3-175b", 8, 8, 3, 1, 64, 18.13, 13.75),
)
NARAYANAN = (                              # model, tp, pp, GPUs, global batch, TFLOP/s a GPU
    ("megatron-1.7b", 1, 1, 32, 512, 137), ("megatron-3.6b", 2, 1, 64, 512, 138),
    ("megatron-7.5b", 4, 1, 128, 512, 142), ("megatron-39.1b", 8, 2, 512, 1536, 138),
    ("megatron-76.1b", 8, 4, 1024, 1792, 140),
    ("megatron-145.6b", 8, 8, 1536, 2304, 148), ("megatron-529.6b", 8, 35, 2520, 2520, 163),
)
MICRO_BATCHES, CHUNKS = (1, 2, 4, 8), range(1, 9)


@dataclass(frozen=True)
class Row:
    """One run: what was measured, what is predicted, and what had to be assumed."""

    source: str
    what: str
    measured: float                        # seconds
    predicted: float
    assumed: str = ""

    @property
    def error(self):
        """(predicted - measured) / measured"""
        return self.predicted / self.measured - 1


def rows():
    """All of them."""
    return [*korthikanti(), *narayanan()]


def korthikanti():
    """Both models, both settings."""
    found = []
    for name, tp, pp, chunks, b, batch, full, selective in KORTHIKANTI:
        base = Training(models.find(name), Layout(tp=tp, pp=pp), micro_batch=b, microbatches=batch // b,
                        schedule="interleaved" if chunks > 1 else "1f1b", chunks=chunks, recompute="full",
                        dtype="float16", grad_dtype="float32")
        lean = replace(base, recompute="selective", sequence_parallel=True)
        for training, seconds in ((base, full), (lean, selective)):
            sp = "sp, " if training.sequence_parallel else ""
            found.append(Row("Korthikanti 2022", f"{name}, {sp}{training.recompute} recomputation", seconds,
                             step(training, find(GPU), overlap=False).seconds))
    return found


def narayanan():
    """All rows of table 1 that are in the oracle."""
    found = []
    for name, tp, pp, gpus, batch, tflops in NARAYANAN:
        model = models.find(name)
        best = min(fitting(model, Layout(tp=tp, pp=pp, dp=gpus // (tp * pp)), batch), key=lambda made: made.seconds)
        measured = model.flops(batch, recompute="full") / (gpus * tflops * 1e12)
        chunks = best.training.chunks
        assumed = f"micro-batch {best.training.micro_batch}, {chunks} chunk{'s' * (chunks > 1)}"
        found.append(Row("Narayanan 2021", f"{name} on {gpus}", measured, best.seconds, assumed))
    return found


def fitting(model, layout, batch):
    """Steps with every micro-batch and number of chunks that the layout allows and the memory holds."""
    for b in MICRO_BATCHES:
        for chunks in CHUNKS if layout.pp > 1 else (1,):
            if batch % (layout.dp * b) or model.layers % (layout.pp * chunks):
                continue
            try:
                training = Training(model, layout, micro_batch=b, microbatches=batch // (layout.dp * b),
                                    schedule="interleaved" if chunks > 1 else "1f1b", chunks=chunks, recompute="full",
                                    dtype="float16")
            except ValueError:
                continue
            if sum(line.bytes for line in worst_stage(training, find(GPU))) <= find(GPU).memory:
                yield step(training, find(GPU), overlap=False)


def summary(found):
    """{source: (median, largest)} of the errors' sizes."""
    sources = dict.fromkeys(row.source for row in found)
    return {source: (median(abs(row.error) for row in found if row.source == source),
                     max(abs(row.error) for row in found if row.source == source)) for source in sources}
