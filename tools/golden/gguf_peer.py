"""Writes tiny checkpoints as GGUF files by llama.cpp's own converter.

    python tools/golden/gguf_peer.py LLAMA_CPP tests/golden/families [FAMILY ...]

LLAMA_CPP is its source folder (llama-cpp-python 0.3.36 carries it as vendor/llama.cpp). Needs torch, transformers, safetensors.
For families whose layouts are llama.cpp's own choice in more than a few tensors (state spaces, hybrids, encoders), beside those that
gguf_dialect.py writes. The tokenizer is its stand-in; of the keys of `general` only the architecture, the name and the file type stay.
Whether llama.cpp computes the goldens with these files, gguf_check.py says.
"""

import json
import math
import pathlib
import sys
import tempfile

LLAMA_CPP, FAMILIES = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
sys.path[:0] = [str(LLAMA_CPP / "gguf-py"), str(LLAMA_CPP)]

import gguf  # noqa: E402
import gguf_dialect  # noqa: E402
import torch  # noqa: E402
from conversion import get_model_class  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

# family -> case -> what the converter needs besides the config: "class" where it knows the model by another name; keys (with dots)
# that released models state and the golden leaves to their defaults, or that the reference does not read and the converter does, None
# to take one away ("nulls": keys that are there, and null); "drop": how names of tensors end that released models do not have; "names": tensors that it would leave out, by the
# name that it knows for the same computation (RoBERTa's pooler is part of its classifier, and BERT's is dropped); "copies": tensors
# that released models keep without using them, by one of their shape; "gguf": keys as
# other files say them that llama.cpp reads, None to leave one out; "mtp": with the modules for tokens further ahead
POOLER = {"pooler.dense.": "classifier.dense."}
LINEAR = {"rope.scaling.type": None, "rope.scaling.factor": None, "rope.scale_linear": 4.0}
# a factor beside the usual one, where the converter's is one in its place
YARN = {"rope.scaling.yarn_attn_factor": None, "rope.scaling.attn_factor": 1.5 / (0.1 * math.log(4) + 1)}
SCALED = {"every_linear": {"gguf": LINEAR}, "every_yarn_attention_factor": {"gguf": YARN}}
SLIDES = {"attention.sliding_window_pattern": [True, False]}
# without the list of layers, as the first files
INTERVAL = {"attention.recurrent_layers": None, "full_attention_interval": 2}
# two positions of heads rotate, of time and of height
QWEN_MTP = {"mtp": True, "full_attention_interval": 2, "rope_parameters.mrope_section": [1, 1, 0]}
MINIMAX = {"class": "MiniMaxText01ForCausalLM", "rotary_dim": 6, "drop": ("_decay", "slope_rate")}
# the keys of the code beside the first files, which the converter asks for
NOMIC = {"n_positions": 8192, "max_trained_positions": 2048, "activation_function": "swiglu", "causal": False, "prenorm": False}
NOMIC |= {"qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False}
NOMIC |= {"rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "nulls": ("rotary_emb_scale_base",), "rotary_emb_base": 1000.0}
# layers that use the keys and values of layers 1 and 2
UNUSED = {f"model.layers.{i}.self_attn.{n}.weight": f"model.layers.{i - 2}.self_attn.{n}.weight" for i in (3, 4) for n in ("k_proj", "v_proj", "k_norm")}
# llama.cpp caps logits where a file does not say that they are not
NO_CAP = {"gguf": {"final_logit_softcapping": 0.0}}
PARTS = ("full_attention", "linear_attention", "mlp")
MINIMAX |= {f"layernorm_{part}_beta": 1.0 for part in PARTS}
CASES = {
    "bamba": {"implied": {}},
    "bert": {"body": {"names": POOLER}, "named_classes": {"names": POOLER}},
    "dbrx": {"base": {"attn_config.rope_theta": 1000.0}},
    "eurobert": {"body": {"classifier_pooling": None}},
    "falcon_h1": {"implied": {"head_dim": 8}},
    "falcon_mamba": {"implied": {}},
    "gemma3n_text": {"implied": {"gguf": {"rope.dimension_count": 12}}, "implied_linear": {}, "streams": {"copies": UNUSED}},
    "gemma4_text": {"base": NO_CAP, "dense": NO_CAP, "final_logit_softcapping": {}, "k_eq_v": NO_CAP, "moe": NO_CAP},
    "hy_v3": {"base": {"gguf": {"rope.dimension_count": 8}}, **SCALED},
    "jais2": {"base": {}, "tie_word_embeddings": {}, **SCALED},
    "jamba": {"base": {}, "experts": {}},
    # the converter leaves it to the default which layers slide
    "laguna": {"base": {"gguf": SLIDES}, "layer_types": {}, "every_linear": {"gguf": LINEAR | SLIDES}, "every_yarn_attention_factor": {"gguf": YARN | SLIDES}},
    "mamba": {"base": {}},
    "mamba2": {"implied": {}},
    "mellum": {"mlp_layer_types": {"gguf": {"rope.dimension_count": 8}}, "sparse_linear": {"gguf": LINEAR}, "sparse_yarn": {"gguf": YARN}},
    "minimax": {
        "released": MINIMAX | {f"layernorm_{part}_alpha": 2.5 for part in PARTS},
        # the converter leaves it to the default which layers attend
        "experts": MINIMAX | {f"layernorm_{part}_alpha": 1.0 for part in PARTS} | {"gguf": {"attention.recurrent_layers": [True, False, True]}},
    },
    "modernbert": {
        "body": {"layer_norm_eps": 1e-5},
        "alternating_body": {"layer_norm_eps": 1e-5, "gguf": {"attention.sliding_window_pattern": [False, True] * 2}},
    },
    # the converter looks for heads of Mamba under Granite's name, and takes any model with the keys of experts for one that has them
    "nemotron_h": {
        "unclamped": {
            "mamba_d_head": 4,
            "hybrid_override_pattern": "M-*-",
            "num_hidden_layers": 4,
            **dict.fromkeys(("layers_block_type", "num_experts_per_tok", "n_routed_experts", "n_group", "topk_group")),
        },
        "unclamped_experts": {"mamba_d_head": 4},
        "unclamped_latent": {"mamba_d_head": 4},
    },
    "nomic_bert": {"body": NOMIC},
    "phimoe": {
        "implied": {"class": "PhiMoEForCausalLM", "rope_parameters.original_max_position_embeddings": 64},
        "implied_longrope": {"class": "PhiMoEForCausalLM"},
    },
    "qwen3_5_moe_text": {"modules": QWEN_MTP},
    "qwen3_5_text": {"modules": QWEN_MTP},
    "qwen3_next": {
        "implied": {}, "implied_interval": {"gguf": INTERVAL}, "implied_linear": {"gguf": LINEAR}, "implied_yarn": {"gguf": YARN}, "modules": {"mtp": True},
    },
    "roberta": {"body": {"names": POOLER}, "classifier": {}},
    "t5": {"released_v1_1": {}},
}


def converted(family, case, extra, scratch):
    base = FAMILIES / family / case
    weights = json.loads((base / "case.json").read_text())["weights"]
    config = json.loads((base / "config.json").read_text())
    for key, value in extra.items():
        *path, last = key.split(".")
        at = config
        for part in path:
            at = at[part]
        if key not in ("class", "copies", "drop", "names", "gguf", "nulls", "mtp"):
            at[last] = value
    # a key that is away is not to come back by the defaults of the class
    stated = None in extra.values()
    config = {key: value for key, value in config.items() if value is not None or key not in extra}
    config |= dict.fromkeys(extra.get("nulls", ()))
    folder = scratch / family
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    # Nomic's converter asks of which kind it is, Gemma's how many tokens it has
    vocab = {str(i): i for i in range(config["vocab_size"])}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "WordPiece", "vocab": vocab}, "added_tokens": []}))
    tensors = load_file(FAMILIES / family / weights / "model.safetensors")
    for old, new in extra.get("names", {}).items():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    tensors = {name: tensor for name, tensor in tensors.items() if not name.endswith(extra.get("drop", ()))}
    tensors |= {name: tensors[of].clone() for name, of in extra.get("copies", {}).items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    kind = get_model_class(extra.get("class", config["architectures"][0]))

    def set_vocab(self):
        gguf_dialect.add_tokenizer(self.gguf_writer, config["vocab_size"])
        if "type_vocab_size" in config:  # which llama.cpp asks of the tokenizer
            self.gguf_writer.add_token_type_count(config["type_vocab_size"])

    kind.set_vocab = set_vocab
    kind._get_suppress_tokens = lambda self: None  # MiniMax's, by a tokenizer
    kind.no_mtp = not extra.get("mtp", False)
    with torch.inference_mode():
        kind(folder, gguf.LlamaFileType.ALL_F32, scratch / "whole.gguf", model_name=f"tiny {family}", hparams=dict(config) if stated else None).write()
    return gguf.GGUFReader(scratch / "whole.gguf")


def write(reader, architecture, path, keys):
    path.parent.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(path, architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        if field.name.startswith("general.") and field.name not in ("general.name", "general.file_type"):
            continue
        if field.name.removeprefix(f"{architecture}.") in keys:
            continue
        writer.add_key_value(field.name, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
    for key, value in keys.items():
        if value is not None:
            add = {int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}[type(value)]
            add(f"{architecture}.{key}", value)
    for tensor in sorted(reader.tensors, key=lambda t: t.name):
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    for family, cases in CASES.items():
        for case, extra in cases.items():
            if sys.argv[3:] and family not in sys.argv[3:]:
                continue
            with tempfile.TemporaryDirectory() as scratch:
                reader = converted(family, case, extra, pathlib.Path(scratch))
                architecture = reader.fields["general.architecture"].contents()
                write(reader, architecture, FAMILIES / family / "gguf" / f"{case}.gguf", extra.get("gguf", {}))
            print(f"{family}/{case}", flush=True)
