"""What a rank sends in a step, to the message: formulas beside a ledger, on random layouts."""

import random

import pytest

from refimpl.layout import Layout
from refimpl.measure.ledger import Ledger
from refimpl.model import text
from refimpl.model.config import Config
from refimpl.precision import LossScale, Precision
from refimpl.train import predicted
from refimpl.train.run import Plan, on_rank
from refimpl.train.setup import Setup
from refimpl.train.single import Recipe
from refimpl.cost import step_traffic
from refimpl.world import run

PHASES = ("forward", "backward", "finish", "loss", "pp forward", "pp backward", "pp tied", "zero reduce", "zero gather",
          "valid targets", "gradient norm", "overflow")
NESTED = {"finish": "backward", "zero reduce": "backward"}              # inside another one, which counts them, too
DATA = text.load()


def random_setup(seed):
    """A run of 4 to 16 ranks that fits together: what is drawn and does not is drawn again. A third each GPT, Llama, MoE."""
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
                       "shared_experts": rng.choice([0, 1]), "balance": rng.choice([0.0, 0.01])}
            sizes |= {"ep": rng.choice([1, 2, 2, 4]), "expert_tp": rng.choice([None, 1])}
        dtype = rng.choice(["float64", "float32", "float16", "bfloat16"])
        kind = rng.choice(["ring", "zigzag", "striped", "gather", "ulysses", "hybrid"])
        schedule = rng.choice(["gpipe", "1f1b", "interleaved", "zb_h1", "zbv", "dualpipev", "looped_bfs"])
        try:
            layout = Layout(**sizes, order=rng.choice(["tp-cp-dp-pp", "dp-tp-pp-cp"]), node_size=4)
            if not 4 <= layout.world <= 16:
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


def counted(log, rank):
    """{(group, phase): (messages, bytes)} of one rank, what is nested counted once."""
    ask = lambda group, phase: (log.messages(rank=rank, group=group, phase=phase),
                                log.bytes_sent(rank=rank, group=group, phase=phase))
    found = {}
    for group in step_traffic.DIMENSIONS:
        for phase in PHASES:
            messages, nbytes = ask(group, phase)
            for inner, outer in NESTED.items():
                if phase == outer:
                    messages, nbytes = messages - ask(group, inner)[0], nbytes - ask(group, inner)[1]
            if messages:
                found[group, phase] = messages, nbytes
    return found


def formulas(setup, log, rank):
    """The same, from the formulas."""
    choices = predicted.routed(log, setup, rank) if setup.config.experts else None
    found = {}
    for row in step_traffic.rows(predicted.seat_of(setup, rank), predicted.sizes_of(setup, rank), choices):
        key = row.group, {"total loss": "loss"}.get(row.phase, row.phase)
        before = found.get(key, (0, 0))
        found[key] = before[0] + row.messages, before[1] + row.bytes
    return found


@pytest.mark.parametrize("seed", range(30))
def test_a_step_sends_what_the_formulas_say(seed):
    setup, log = random_setup(seed), Ledger()
    run(on_rank, setup.layout.world, setup, DATA, Plan(steps=1, measure=False), ledger=log)
    for rank in range(setup.layout.world):
        assert formulas(setup, log, rank) == counted(log, rank)
    of_all = sum(sum(counts["bytes"]) for counts in predicted.sent(setup, log).values())
    assert of_all == log.bytes_sent()                                  # nothing was sent under another name
