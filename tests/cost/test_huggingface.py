"""Sizes from a config.json: what is read, what is named because it is not understood, what is refused."""

import json

import pytest

from refimpl.cost.huggingface import IGNORED, TYPES, read
from refimpl.cost.models import find

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
         "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "torch_dtype": "bfloat16",
         "tie_word_embeddings": False, "hidden_act": "silu", "attention_bias": False, "use_cache": True}
GPT2 = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 1024,
        "n_ctx": 1024, "activation_function": "gelu_new", "attn_pdrop": 0.1, "layer_norm_epsilon": 1e-5}
MIXTRAL = LLAMA | {"model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
                   "max_position_embeddings": 32768, "router_aux_loss_coef": 0.02}
DEEPSEEK = LLAMA | {"model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "vocab_size": 129280,
                    "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432,
                    "moe_intermediate_size": 2048, "n_routed_experts": 256, "num_experts_per_tok": 8,
                    "n_shared_experts": 1, "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512,
                    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "moe_layer_freq": 1,
                    "num_nextn_predict_layers": 1, "topk_method": "noaux_tc", "n_group": 8}
QWEN2 = LLAMA | {"model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
                 "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064}
QWEN3 = LLAMA | {"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
                 "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "vocab_size": 151936,
                 "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "mlp_only_layers": [],
                 "decoder_sparse_step": 1}


@pytest.fixture
def file(tmp_path):
    def write(config):
        folder = tmp_path / "some-model"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
        return folder / "config.json"

    return write


@pytest.mark.parametrize(("config", "parameters", "active"), [
    (LLAMA, 8_030_261_248, 8_030_261_248), (GPT2, 124_439_808, 124_439_808),
    (MIXTRAL, 46_702_792_704, 12_879_925_248), (QWEN2, 7_615_616_512, 7_615_616_512),
    (QWEN3, 30_532_122_624, 30_532_122_624 - 48 * 120 * 3 * 2048 * 768)],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "")
def test_published_models_have_exactly_as_many_parameters(file, config, parameters, active):
    """As the sums over their published weights."""
    model, left_out = read(file(config))
    assert (model.parameters, model.active_parameters) == (parameters, active)
    assert left_out == []


def test_deepseek_is_the_preset_and_what_it_has_beside_is_named(file):
    """num_nextn_predict_layers is a module of 11B parameters that is not counted: the reader must know."""
    model, left_out = read(file(DEEPSEEK))
    assert model.parts == find("deepseek-v3").parts and left_out == ["num_nextn_predict_layers"]


def test_a_model_is_named_after_its_folder_and_has_its_positions(file):
    model, _ = read(file(LLAMA))
    assert (model.name, model.sequence, model.positions) == ("some-model", 8192, 0)
    gpt2, _ = read(file(GPT2))
    assert (gpt2.sequence, gpt2.positions, gpt2.dropout) == (1024, 1024, True)


@pytest.mark.parametrize(("more", "named"), [
    ({"attn_windows": 3, "ffn_multiplier": 2}, ["attn_windows", "ffn_multiplier"]),
    ({"num_experts": 4}, ["num_experts"]), ({"attention_bias": True}, ["attention_bias"]),
    ({"mlp_only_layers": [1]}, ["mlp_only_layers"]), ({"mlp_only_layers": []}, []), ({"mlp_only_layers": None}, [])])
def test_what_is_not_understood_is_named_not_guessed(file, more, named):
    model, left_out = read(file(LLAMA | more))
    assert left_out == named and model.parameters == 8_030_261_248


def test_sizes_of_all_types_are_no_ignored_fields():
    for names, _ in TYPES.values():
        assert not IGNORED & set(names.values())


@pytest.mark.parametrize(("config", "says"), [
    ({**LLAMA, "model_type": "lama"}, "model_type='lama': nearest 'llama'; there are gpt2, gpt_neox"),
    ({**LLAMA, "model_type": "rwkv"}, "model_type='rwkv': there are gpt2"), ({"hidden_size": 3}, "model_type=None"),
    ({key: LLAMA[key] for key in LLAMA if key != "hidden_size"}, "hidden_size is missing"),
    ({**LLAMA, "hidden_size": None}, "hidden_size is missing"),
    ({**LLAMA, "num_hidden_layers": "32"}, "layers='32': expected a whole number"),
    ({**LLAMA, "num_key_value_heads": 5}, "kv_heads=5 does not divide heads=32"),
    ({**DEEPSEEK, "q_lora_rank": None}, "q_lora_rank is missing, or null, which is not understood"),
    ("{", "cannot be read as JSON"), ("[]", "model_type=None"), ("", "cannot be read as JSON")])
def test_what_cannot_be_read_is_one_line_that_names_file_and_field(file, config, says):
    path = file(config)
    with pytest.raises(ValueError) as error:
        read(path)
    assert says in str(error.value) and str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match="nowhere.json: cannot be read"):
        read(tmp_path / "nowhere.json")
