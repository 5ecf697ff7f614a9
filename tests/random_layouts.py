"""Random training runs that fit together, for tests that compare what was counted with formulas."""

import random

from refimpl.layout import Layout
from refimpl.model import text
from refimpl.model.config import Config
from refimpl.precision import LossScale, Precision
from refimpl.train import predicted
from refimpl.train.setup import Setup
from refimpl.train.single import Recipe

DATA = text.load()


def random_setup(seed):
    """A run of 4 to 12 ranks that fits together: what is drawn and does not is drawn again. In turn GPT, Llama, MoE."""
    rng = random.Random(seed)
    while True:
        family = ["gpt2", "llama", "moe"][seed % 3]
        sizes = {axis: rng.choice([1, 2, 2, 3, 4]) for axis in ("dp", "pp", "cp", "tp")}
        heads = rng.choice([4, 6, 8])
        config = {"family": "llama" if family == "moe" else family, "vocabulary": text.VOCABULARY, "hidden": 4 * heads,
                  "layers": rng.choice([3, 4, 6]), "heads": heads, "kv_heads": rng.choice([heads, heads // 2, 1]),
                  "ffn": rng.choice([None, 22]), "context": 26, "recompute": rng.choice(["none", "selective", "full"]),
                  "attention": rng.choice(["naive", "blockwise"])}
        if family == "moe":
            config |= {"experts": rng.choice([4, 8]), "top_k": rng.choice([1, 2]), "expert_ffn": rng.choice([None, 10]),
                       "shared_experts": rng.choice([0, 1]), "balance": rng.choice([0.0, 0.01]),
                       "bias_rate": rng.choice([0.0, 0.001])}
            sizes |= {"ep": rng.choice([1, 2, 2, 4]), "expert_tp": rng.choice([None, 1])}
        dtype = rng.choice(["float64", "float32", "float16", "bfloat16"])
        kind = rng.choice(["ring", "zigzag", "striped", "gather", "ulysses", "hybrid"])
        schedule = rng.choice(["gpipe", "1f1b", "interleaved", "zb_h1", "zbv", "dualpipev", "looped_bfs"])
        try:
            layout = Layout(**sizes, order=rng.choice(["tp-cp-dp-pp", "dp-tp-pp-cp"]), node_size=4)
            if not 4 <= layout.world <= 12:
                continue
            setup = Setup(Config(**config), layout, sequence=24, global_batch=rng.randint(3, 9),
                          micro_batch=rng.choice([None, 1, 2]), schedule=schedule, cp_kind=kind,
                          sequence_parallel=rng.random() < 0.5, ulysses=2 if kind == "hybrid" else None,
                          zero=rng.randint(0, 3), recipe=Recipe(
                              precision=Precision(dtype, rng.choice([None, "float32"]) if dtype != "float64" else None),
                              scale=LossScale(2.0) if dtype == "float16" else None))
            predicted.training_of(setup)
        except ValueError:
            continue
        return setup
