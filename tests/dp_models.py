"""Small models and batches for the tests of data parallelism: uneven everywhere, some tokens ignored."""

import numpy as np
from tp_models import drawn

from refimpl.arrays import to_host
from refimpl.model import transformer
from refimpl.model.config import Config, shapes
from refimpl.parallel import data
from refimpl.testing import norm_of_all, relative_difference

GPT2 = Config("gpt2", vocabulary=11, hidden=12, layers=2, heads=6, ffn=10, context=13, dropout=0.2)
LLAMA = Config("llama", vocabulary=11, hidden=12, layers=2, heads=6, kv_heads=2, ffn=10)
CAPS = [1, 500, 10**6]                                   # elements: a bucket a gradient, some buckets, one for all
S = 4                                                    # positions


def batch_of(config, sequences=5, dtype="float64"):
    """tokens, targets (sequences, S), some ignored, a whole sequence among them, and the model's parameters."""
    rng = np.random.default_rng(7)
    tokens, targets = rng.integers(0, config.vocabulary, (2, sequences, S))
    targets[0, :3] = -1
    targets[sequences // 2] = -1
    return tokens, targets, drawn(shapes(config), dtype)


def micro_batches_of(tokens, targets, config, comm, micro_batches, seed=3, step=2):
    """The rank's own part of a batch, for `data.loss_and_gradients`."""
    mine = []
    for part in data.share(tokens.shape[0], comm.rank, comm.size, micro_batches):
        rows = slice(part.start, part.stop)
        place = transformer.Place(part, range(tokens.shape[1]), range(config.heads), seed, step)
        mine.append((tokens[rows], targets[rows], place))
    return mine


def sizes_of(parameters):
    """Elements by name."""
    return {name: p.size for name, p in parameters.items()}


def on_one_device(config, tokens, targets, parameters, seed=3, step=2):
    """{"loss": ..., gradients by name} of the mean loss: the truth."""
    place = transformer.whole(tokens, config, seed, step)
    total, count, saved = transformer.loss(tokens, targets, parameters, config, place)
    gradients = transformer.loss_backward(1 / max(count, 1), saved)
    return {"loss": to_host(total) / max(count, 1)} | gradients


def assert_gradients_equal(found, expected, tolerance=1e-12):
    """Loss and gradients by name: the same names, each within the tolerance of its norm."""
    assert found.keys() == expected.keys()
    norm = norm_of_all([g for name, g in expected.items() if name != "loss"])
    for name, b in expected.items():
        difference = relative_difference(to_host(found[name]), b, 0 if name == "loss" else norm)
        assert difference <= tolerance, f"{name}: {difference:.2g}"
