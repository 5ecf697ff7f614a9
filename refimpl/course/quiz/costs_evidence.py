"""What a question's `check` may call on memory, layouts and claims: as in evidence.py, computed without the key.

    kept_units(8, True)                     what a layer keeps, in s b h             a meter counts on ranks
    kind_of('llama2-70b', 'logits', ...)    GB of the fullest GPU                    cost/footprint.py
    total_of('gpt3-175b', 'a100-80gb', ...) the same, of all kinds                   cost/footprint.py
    States(zero=1).per_parameter(64)        bytes of model states                    cost/states.py
    rounded(2**-26, 'float16')              a number as it is stored                 precision.py
    nodes_of('ep', dp=16, tp=8, ep=8)       how far a group reaches                  the layout's ranks are listed
    all_reduces_of_layer()                  of a tensor-parallel layer and step      counted in elements
    claim_value('b')                        what comes out of a claim                cost/facts
"""

import numpy as np

from refimpl.cost import traffic
from refimpl.cost.facts import claims
from refimpl.cost.footprint import footprint
from refimpl.cost.hardware import find as find_gpu
from refimpl.cost.models import find as find_model
from refimpl.cost.sizes import Model
from refimpl.cost.states import States
from refimpl.cost.training import Training
from refimpl.course.exercises.costs_cases import kept_counted
from refimpl.layout import Layout
from refimpl.precision import STORED, narrow, wide


def kept_units(t, sequence_parallel=False, recompute="selective"):
    """Bytes that a layer keeps on one of t ranks, in units of s b h."""
    s, b, h = 8 * t, 1, 16 * t
    return kept_counted(s, b, h, t, t, sequence_parallel, recompute) / (s * b * h)


def scores_share(s, h, a):
    """Share of the scores in what a layer keeps on one GPU."""
    layer = Model("layer", 1, h, a, 1, sequence=s, positions=s, dropout=True)
    kept = lambda recompute: footprint(Training(layer, recompute=recompute)).kinds(0)["activations"]
    return 1 - kept("selective") / kept("none")


def kind_of(model, kind, **options):
    """GB of one kind on the fullest GPU of a model's layout; options of `Training`, and axes of its `Layout`."""
    found = footprint(training_of(model, options))
    return found.kinds(found.worst)[kind] / 1e9


def total_of(model, card, **options):
    """GB of everything on the fullest GPU of this kind; options as in `kind_of`."""
    return footprint(training_of(model, options), find_gpu(card)).total() / 1e9


def training_of(model, options):
    """The `Training` of a model: options of its own, and axes of its `Layout`."""
    axes = {axis: options.pop(axis) for axis in ("dp", "tp", "pp", "cp", "ep") if axis in options}
    return Training(find_model(model), Layout(**axes), **options)


def fewest_stages(model, gpu, tp, bytes_each):
    """The smallest power of two of pipeline ranks with which model states of so many bytes a parameter fit a GPU."""
    held, pp = find_model(model).parameters * bytes_each / tp, 1
    while held / pp > find_gpu(gpu).memory:
        pp *= 2
    return pp


def nodes_of(axis, **sizes):
    """Nodes of 8 that the first group of an axis is on."""
    return len({rank // 8 for rank in Layout(**sizes).group(axis, 0)})


def replicas_on(gpus, tp, pp, ep=1):
    """Data-parallel ranks of a layout on so many GPUs: tried until they are all used."""
    return next(dp for dp in range(1, gpus + 1)
                if dp * tp % ep == 0 and Layout(dp=dp, tp=tp, pp=pp, ep=ep, expert_tp=1).world == gpus)


def expert_replicas(gpus, pp, ep):
    """Ranks that have the same experts."""
    return Layout(dp=gpus // pp, pp=pp, ep=ep).size("expert_dp")


def sequences_of(m, **axes):
    """Sequences of a step with m micro-batches of one."""
    return Training(find_model("gpt3-175b"), Layout(**axes), microbatches=m).global_batch


def all_reduces_of_layer(recompute="none"):
    """All-reduces of a tensor-parallel layer in a step, from the elements that a rank sends."""
    sent = sum(traffic.tensor_parallel_block(1, 16, 8, 2, 0, recompute=recompute).values())
    return sent / traffic.ring_all_reduce(16 * 8, 2, 0)


def mfu_of_hfu():
    """MFU as a share of HFU under full recomputation, in a model of matrices alone."""
    forward = find_model("gpt3-175b").forward_flops()["matrices"]
    return 3 * forward / (3 * forward + forward)


def rounded(x, dtype):
    """The number as an element of this dtype: "float16", "bfloat16", "float32"."""
    stored = narrow(np.array([x], dtype=np.float32), np.dtype(STORED[dtype]))
    return float(wide(stored)[0])


def claim_value(id):
    """The number that comes out of a claim."""
    return next(one.value for one in claims() if one.id == id)


def gpu(name):
    """A GPU."""
    return find_gpu(name)


COSTS = {f.__name__: f for f in (
    kept_units, scores_share, kind_of, total_of, fewest_stages, nodes_of, replicas_on, expert_replicas, sequences_of,
    all_reduces_of_layer, mfu_of_hfu, rounded, claim_value, gpu, States)}
