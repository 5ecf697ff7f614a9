"""Models by name: those that papers measured, and the sizes of your own.

    find("llama3-70b")  ->  Model           nearest names where there is none
    change(model, layers=40)                what follows from a size follows again: 4 hidden, hidden / heads, ...

What a `Model` knows about itself, parameters and floating-point operations, is in sizes.py. The tests compare each
preset's parameters with the sum over its published weights.
"""

import difflib
from dataclasses import fields, replace

from refimpl.cost.sizes import Latent, Model


def of_transformer(config):
    """The `Model` of a `refimpl.model` Config (or whatever has its fields)."""
    gpt2 = config.family == "gpt2"
    return Model(config.family, config.layers, config.hidden, config.heads, config.vocabulary, config.kv_heads,
                 ffn=config.ffn, gated=not gpt2, sequence=config.context, tied=config.tied, bias=gpt2,
                 norm="layer" if gpt2 else "rms", positions=config.context if gpt2 else 0, dropout=config.dropout > 0,
                 experts=config.experts, top_k=config.top_k if config.experts else 1, expert_ffn=config.expert_ffn,
                 shared_experts=config.shared_experts)


def find(name):
    """The preset of this name. ValueError with the nearest names."""
    word = str(name).strip().lower().replace("_", "-").replace(" ", "-")
    found = MODELS.get(ALIASES.get(word, word))
    if found is None:
        near = difflib.get_close_matches(word, [*MODELS, *ALIASES], n=3, cutoff=0.5)
        raise ValueError(f"there is no model {name!r}: " + (f"nearest {', '.join(near)}" if near else
                                                           f"there are {', '.join(MODELS)}"))
    return found


def change(model, **sizes):
    """`model` with other sizes, by field; None leaves one as it is. What follows from a size follows again."""
    new = {name: value for name, value in sizes.items() if value is not None}
    if "hidden" in new or "heads" in new:                              # else heads would keep their old width
        new.setdefault("head", None)
        if "hidden" in new and model.ffn == 4 * model.hidden:
            new.setdefault("ffn", None)
    if "heads" in new and model.kv_heads == model.heads:
        new.setdefault("kv_heads", None)
    return replace(model, **new)


def custom(layers, hidden, heads, vocabulary, gated=False, tied=False, sequence=2048, **sizes):
    """A model of your own. Tied and not gated it is a GPT: learned positions, LayerNorm, biases, dropout. Else, as a
    Llama, it has rotary positions, RMSNorm and none of the others; `gated` or not."""
    gpt = tied and not gated
    return Model("custom", layers, hidden, heads, vocabulary, gated=gated, tied=tied, sequence=sequence, bias=gpt,
                 norm="layer" if gpt else "rms", positions=sequence if gpt else 0, dropout=gpt, **sizes)


def _gpt(name, layers, hidden, heads, vocabulary=51200, sequence=2048):
    return Model(name, layers, hidden, heads, vocabulary, sequence=sequence, positions=sequence, dropout=True)


def _llama(name, layers, hidden, heads, kv_heads, ffn, vocabulary, sequence, **others):
    return Model(name, layers, hidden, heads, vocabulary, kv_heads, ffn=ffn, gated=True, sequence=sequence, tied=False,
                 bias=False, norm="rms", **others)


MODELS = {model.name: model for model in (
    # Radford et al. 2019
    _gpt("gpt2-small", 12, 768, 12, 50257, 1024), _gpt("gpt2-medium", 24, 1024, 16, 50257, 1024),
    _gpt("gpt2-large", 36, 1280, 20, 50257, 1024), _gpt("gpt2-xl", 48, 1600, 25, 50257, 1024),
    # Brown et al. 2020; the vocabulary of 50257 padded to 51200, as in both Megatron papers
    _gpt("gpt3-175b", 96, 12288, 96),
    # Narayanan et al. 2021, table 1
    _gpt("megatron-1.7b", 24, 2304, 24), _gpt("megatron-3.6b", 30, 3072, 32), _gpt("megatron-7.5b", 36, 4096, 32),
    _gpt("megatron-18.4b", 40, 6144, 48), _gpt("megatron-39.1b", 48, 8192, 64),
    _gpt("megatron-76.1b", 60, 10240, 80), _gpt("megatron-145.6b", 80, 12288, 96),
    _gpt("megatron-310.1b", 96, 16384, 128), _gpt("megatron-529.6b", 105, 20480, 128),
    _gpt("megatron-1008b", 128, 25600, 160),
    # Korthikanti et al. 2022, table 3; their 175B, 530B and 1T are above
    _gpt("megatron-22b", 48, 6144, 64),
    # Touvron et al. 2023; Llama team 2024, table 3
    _llama("llama2-7b", 32, 4096, 32, 32, 11008, 32000, 4096),
    _llama("llama2-13b", 40, 5120, 40, 40, 13824, 32000, 4096),
    _llama("llama2-70b", 80, 8192, 64, 8, 28672, 32000, 4096),
    _llama("llama3-8b", 32, 4096, 32, 8, 14336, 128256, 8192),
    _llama("llama3-70b", 80, 8192, 64, 8, 28672, 128256, 8192),
    _llama("llama3-405b", 126, 16384, 128, 8, 53248, 128256, 8192),
    # Jiang et al. 2024, and Mistral's configurations
    _llama("mixtral-8x7b", 32, 4096, 32, 8, 14336, 32000, 4096, experts=8, top_k=2),
    _llama("mixtral-8x22b", 56, 6144, 48, 8, 16384, 32000, 4096, experts=8, top_k=2),
    # DeepSeek-AI 2024, section 4.2; without the module that predicts one token more
    _llama("deepseek-v3", 61, 7168, 128, 128, 18432, 129280, 4096, experts=256, top_k=8, expert_ffn=2048,
           shared_experts=1, dense_layers=3, router_bias=True, latent=Latent(1536, 512, 128, 64, 128), head=128),
    # ours, for the design question "a mixture of experts of 409B parameters on 1024 H100"
    _llama("moe-409b", 80, 5120, 40, 8, 5120, 128256, 4096, experts=64, top_k=2),
)}
ALIASES = {"gpt2": "gpt2-small", "gpt3": "gpt3-175b", "gpt-3": "gpt3-175b", "megatron-175b": "gpt3-175b",
           "megatron-530b": "megatron-529.6b", "mt-nlg-530b": "megatron-529.6b", "megatron-1t": "megatron-1008b",
           "llama-2-70b": "llama2-70b", "llama-3-70b": "llama3-70b", "llama-3-405b": "llama3-405b",
           "llama-3-8b": "llama3-8b", "mixtral": "mixtral-8x7b", "deepseek": "deepseek-v3"}
SIZES = tuple(field.name for field in fields(Model))

