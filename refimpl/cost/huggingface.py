"""A model's sizes from its config.json, as Hugging Face stores them. What is not understood is named, not guessed.

    read("config.json")  ->  Model, names of the fields that were left out

Each `model_type` has its own names for the same sizes, and says nothing of what all models of its type have in common:
whether the MLP is gated, which biases there are, that positions are rotary. So only known types are read. A field that
says nothing about sizes (IGNORED) is passed over; any other that is unknown may change what counts, and is returned.
"""

import difflib
import json
from pathlib import Path

from refimpl.cost.sizes import Latent, Model

SIZES = {                                  # ours: theirs
    "layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads", "vocabulary": "vocab_size",
    "kv_heads": "num_key_value_heads", "head": "head_dim", "ffn": "intermediate_size", "tied": "tie_word_embeddings",
    "sequence": "max_position_embeddings"}
GPT2 = {"layers": "n_layer", "hidden": "n_embd", "heads": "n_head", "vocabulary": "vocab_size", "ffn": "n_inner",
        "tied": "tie_word_embeddings", "positions": "n_positions"}
LLAMA = {"gated": True, "bias": False, "norm": "rms", "tied": False}
QWEN_EXPERTS = {"experts": "num_experts", "top_k": "num_experts_per_tok", "expert_ffn": "moe_intermediate_size"}
DEEPSEEK = SIZES | QWEN_EXPERTS | {"experts": "n_routed_experts", "shared_experts": "n_shared_experts",
                                   "dense_layers": "first_k_dense_replace"}
LATENT = {"q": "q_lora_rank", "kv": "kv_lora_rank", "plain": "qk_nope_head_dim", "rotary": "qk_rope_head_dim",
          "value": "v_head_dim"}
TYPES = {                                  # model_type: (names of sizes, what all of the type have in common)
    "gpt2": (GPT2, {"dropout": True}),
    "gpt_neox": (SIZES, {"tied": False}),
    "llama": (SIZES, LLAMA),
    "mistral": (SIZES, LLAMA),
    "qwen2": (SIZES, LLAMA | {"qkv_bias": True}),
    "qwen3": (SIZES, LLAMA | {"qk_norm": True}),
    "qwen3_moe": (SIZES | QWEN_EXPERTS, LLAMA | {"qk_norm": True}),
    "mixtral": (SIZES | {"experts": "num_local_experts", "top_k": "num_experts_per_tok"}, LLAMA),
    "deepseek_v3": (DEEPSEEK, LLAMA | {"router_bias": True}),
    "deepseek_v2": (DEEPSEEK, LLAMA),
}
IGNORED = set("""
    _name_or_path activation_function architectures attention_bias attention_dropout attn_implementation attn_pdrop
    auto_map aux_loss_alpha bos_token_id classifier_dropout decoder_sparse_step dtype embd_pdrop eos_token_id ep_size
    hidden_act hidden_dropout initializer_range layer_norm_eps layer_norm_epsilon max_window_layers mlp_bias
    mlp_only_layers model_type moe_layer_freq n_ctx n_group norm_topk_prob output_router_logits pad_token_id
    pretraining_tp quantization_config reorder_and_upcast_attn resid_pdrop rms_norm_eps rope_parameters rope_scaling
    rope_theta rotary_emb_base rotary_pct routed_scaling_factor router_aux_loss_coef router_jitter_noise
    scale_attn_by_inverse_layer_idx scale_attn_weights scoring_func seq_aux sliding_window summary_activation
    summary_first_dropout summary_proj_to_labels summary_type summary_use_proj task_specific_params topk_group
    topk_method torch_dtype transformers_version use_cache use_parallel_residual use_sliding_window""".split())
MEANT = {"mlp_only_layers": [[]], "decoder_sparse_step": [1], "moe_layer_freq": [1], "attention_bias": [False],
         "mlp_bias": [False]}              # of these any other value changes sizes, and is not understood
NEEDED = ("layers", "hidden", "heads", "vocabulary")


def read(file):
    """The `Model` of a config.json, named after its folder or file, and the names of fields that were left out.

    Raises ValueError, which names file and field, for what is no such file, of an unknown type, or without its sizes.
    """
    try:
        config = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: cannot be read as JSON: {error}") from None
    if not isinstance(config, dict) or config.get("model_type") not in TYPES:
        found = config.get("model_type") if isinstance(config, dict) else None
        near = difflib.get_close_matches(str(found), TYPES, n=1, cutoff=0.6)
        raise ValueError(f"{file}: model_type={found!r}: " + (f"nearest {near[0]!r}; " if near else "")
                         + f"there are {', '.join(TYPES)}")
    names, common = TYPES[config["model_type"]]
    sizes = common | {ours: config[theirs] for ours, theirs in names.items() if config.get(theirs) is not None}
    known = {*names.values(), *IGNORED} - {name for name, values in MEANT.items() if config.get(name) not in
                                           [None, *values]}
    if config["model_type"].startswith("deepseek"):
        latent = {ours: config.get(theirs) for ours, theirs in LATENT.items()}
        if None in latent.values():
            missing = next(LATENT[ours] for ours, value in latent.items() if value is None)
            raise ValueError(f"{file}: {missing} is missing, or null, which is not understood")
        sizes |= {"latent": Latent(**latent), "head": latent["value"]}
        known |= set(LATENT.values())
    for ours in NEEDED:
        if ours not in sizes:
            raise ValueError(f"{file}: {names[ours]} is missing")
    if config["model_type"] == "gpt2":
        sizes["sequence"] = sizes.setdefault("positions", 1024)
    try:
        model = Model(_name(file), **sizes)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file}: {error}") from None
    return model, sorted(config.keys() - known)


def _name(file):
    path = Path(file)
    return path.parent.name if path.stem == "config" and path.parent.name else path.stem
