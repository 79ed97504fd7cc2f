"""Writes tiny checkpoints as GGUF files by llama.cpp's own converter.

    python tools/golden/gguf_peer.py LLAMA_CPP tests/golden/families [FAMILY ...]

LLAMA_CPP is its source folder (llama-cpp-python 0.3.36 carries it as vendor/llama.cpp). Needs torch, transformers, safetensors.
For families whose layouts are llama.cpp's own choice in more than a few tensors (state spaces, hybrids, encoders), beside those that
gguf_dialect.py writes. The tokenizer is its stand-in; of the keys of `general` only the architecture, the name and the file type stay.
Whether llama.cpp computes the goldens with these files, gguf_check.py says.
"""

import json
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

# family -> case -> what the converter needs besides the config: "class" where it knows the model by another name, and
# keys that released models state and the golden leaves to their defaults; None takes a key away; "names": tensors that it would leave out, by the name that
# it knows for the same computation (RoBERTa's pooler is part of its classifier, and BERT's is dropped)
POOLER = {"pooler.dense.": "classifier.dense."}
CASES = {
    "bamba": {"implied": {}},
    "bert": {"body": {"names": POOLER}, "named_classes": {"names": POOLER}},
    "falcon_h1": {"implied": {"head_dim": 8}},
    "falcon_mamba": {"implied": {}},
    "jamba": {"base": {}, "experts": {}},
    "mamba": {"base": {}},
    "mamba2": {"implied": {}},
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
    "roberta": {"body": {"names": POOLER}, "classifier": {}},
    "t5": {"released_v1_1": {}},
}


def converted(family, case, extra, scratch):
    base = FAMILIES / family / case
    weights = json.loads((base / "case.json").read_text())["weights"]
    config = json.loads((base / "config.json").read_text()) | {k: v for k, v in extra.items() if k not in ("class", "names")}
    config = {key: value for key, value in config.items() if value is not None}
    folder = scratch / family
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(FAMILIES / family / weights / "model.safetensors")
    for old, new in extra.get("names", {}).items():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    kind = get_model_class(extra.get("class", config["architectures"][0]))

    def set_vocab(self):
        gguf_dialect.add_tokenizer(self.gguf_writer, config["vocab_size"])
        if "type_vocab_size" in config:  # which llama.cpp asks of the tokenizer
            self.gguf_writer.add_token_type_count(config["type_vocab_size"])

    kind.set_vocab = set_vocab
    with torch.inference_mode():
        kind(folder, gguf.LlamaFileType.ALL_F32, scratch / "whole.gguf", model_name=f"tiny {family}", hparams=dict(config)).write()
    return gguf.GGUFReader(scratch / "whole.gguf")


def write(reader, architecture, path):
    path.parent.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(path, architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        if field.name.startswith("general.") and field.name not in ("general.name", "general.file_type"):
            continue
        writer.add_key_value(field.name, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
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
                write(reader, reader.fields["general.architecture"].contents(), FAMILIES / family / "gguf" / f"{case}.gguf")
            print(f"{family}/{case}", flush=True)
