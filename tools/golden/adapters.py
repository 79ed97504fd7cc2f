"""Goldens of adapters in PEFT's files, and the way back: PEFT reads what tessera wrote.

    python tools/golden/adapters.py --out tests/golden/adapters
    python tools/golden/adapters.py --check FOLDER --case gpt2 --io OUTPUT.safetensors
    python tools/golden/adapters.py --check FOLDER --base HF_FOLDER --input INPUT.safetensors --io OUTPUT.safetensors

The bases are the tiny models of tests/golden/families: FAMILY/base, or FAMILY/tie_word_embeddings for names that go on with
"-tied"; FAMILY is the name up to the first "-". A case is a folder with adapter_config.json, adapter_model.safetensors and
io.safetensors (input_ids, logits with the adapter, base: the logits without). --check loads a folder that tessera wrote for the base
of its case and compares the logits of the case's input_ids with those that `tessera forward` wrote. --base checks the adapter of a
run of one's own (`tessera finetune MODEL --lora 8 --out RUN`, `tessera convert MODEL --export-adapter RUN --out FOLDER`, `tessera convert
MODEL --to hf --out HF_FOLDER`, `tessera forward MODEL --adapter RUN --input INPUT.safetensors --output OUTPUT.safetensors`).
Needs torch, transformers 5.23, peft 0.21.
"""

import argparse
import json
import pathlib

import torch
import transformers
from peft import (
    IA3Config,
    LoraConfig,
    PeftModel,
    PrefixTuningConfig,
    PromptTuningConfig,
    TrainableTokensConfig,
    get_peft_model,
    get_peft_model_state_dict,
)
from safetensors.torch import load_file, save_file

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests/golden"
FAMILIES, ADAPTERS = GOLDEN / "families", GOLDEN / "adapters"
TOLERANCE = 1e-4
MOVED = 0.05  # what an adapter must change at least, or a test of it could not fail

TOKENS = [7, 3, 11]

CASES = {
    # every linear of the layers, ranks and factors of their own
    "llama": dict(
        r=4,
        lora_alpha=6,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        rank_pattern={"q_proj": 3, "layers.1.mlp.down_proj": 2},
        alpha_pattern={"layers.0.self_attn.v_proj": 9},
    ),
    # the factor alpha / sqrt(r)
    "qwen2": dict(r=5, lora_alpha=4, target_modules=["q_proj", "v_proj"], use_rslora=True),
    # matrices stored (in, out), and three in one
    "gpt2": dict(r=3, lora_alpha=5, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True),
    # lengths of rows, beside biases; an expression among the factors
    "qwen2-dora": dict(
        r=3,
        lora_alpha=4,
        target_modules=["q_proj", "v_proj", "down_proj"],
        use_dora=True,
        alpha_pattern={"layers\\.[01]\\..*v_proj": 7},
    ),
    "gpt2-dora": dict(r=2, lora_alpha=3, target_modules=["c_attn", "c_fc"], use_dora=True, fan_in_fan_out=True),
    # a head that is trained whole
    "llama-head": dict(r=2, lora_alpha=2, target_modules=["q_proj"], modules_to_save=["lm_head"]),
    "qwen2-ia3": dict(peft=IA3Config, target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "gpt2-ia3": dict(peft=IA3Config, target_modules=["c_attn", "mlp.c_proj"], feedforward_modules=["mlp.c_proj"]),
    "llama-prefix": dict(peft=PrefixTuningConfig, num_virtual_tokens=3),
    "gpt2-prefix": dict(peft=PrefixTuningConfig, num_virtual_tokens=2),
    "llama-prompt": dict(peft=PromptTuningConfig, num_virtual_tokens=4),
    "gpt2-prompt": dict(peft=PromptTuningConfig, num_virtual_tokens=3),
    # a table that is trained whole; the output matrix is tied to it in the base
    "llama-tied-embed": dict(r=2, lora_alpha=2, target_modules=["q_proj"], modules_to_save=["embed_tokens"]),
    "llama-tied-head": dict(r=2, lora_alpha=2, target_modules=["q_proj"], modules_to_save=["lm_head"]),
    "llama-tied-both": dict(r=2, lora_alpha=2, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"]),
    "llama-tied-ensure": dict(
        r=2, lora_alpha=2, target_modules=["q_proj"], modules_to_save=["embed_tokens"], ensure_weight_tying=True
    ),
    # products on tables
    "llama-tied-lora-embed": dict(r=3, lora_alpha=4, target_modules=["q_proj", "embed_tokens"]),
    "llama-tied-lora-head": dict(r=3, lora_alpha=4, target_modules=["q_proj", "lm_head"]),
    "llama-tied-lora-ensure": dict(r=3, lora_alpha=4, target_modules=["embed_tokens"], ensure_weight_tying=True),
    "llama-lora-tables": dict(r=3, lora_alpha=4, target_modules=["v_proj", "embed_tokens", "lm_head"], use_rslora=True),
    # rows of tables
    "llama-tied-tokens": dict(r=2, lora_alpha=2, target_modules=["q_proj"], trainable_token_indices=TOKENS),
    "llama-tied-tokens-apart": dict(
        r=2, lora_alpha=2, target_modules=["q_proj"], trainable_token_indices={"embed_tokens": TOKENS, "lm_head": [5, 2]}
    ),
    "llama-tokens": dict(r=2, lora_alpha=2, target_modules=["q_proj"], trainable_token_indices=TOKENS),
    "llama-tied-only-tokens": dict(peft=TrainableTokensConfig, token_indices=TOKENS),
    # a vocabulary that grew: the tables are saved, and no key of the config says so
    "llama-grown": dict(r=2, lora_alpha=2, target_modules=["q_proj"], grown=4),
    "llama-tied-grown": dict(r=2, lora_alpha=2, target_modules=["q_proj", "embed_tokens"], grown=4),
    # the recipe for added tokens: resized tables, trained whole; the file has each of them as "weight", "modules_to_save.weight" and
    # "original_module.weight", rows of tokens have "token_adapter.base_layer.weight"
    "llama-grown-both": dict(r=2, lora_alpha=2, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"], grown=4),
    "llama-tied-grown-both": dict(r=2, lora_alpha=2, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"], grown=4),
    "llama-tied-grown-embed": dict(r=2, lora_alpha=2, target_modules=["q_proj"], modules_to_save=["embed_tokens"], grown=4),
    "llama-tied-grown-ensure": dict(
        r=2, lora_alpha=2, target_modules=["q_proj"], modules_to_save=["embed_tokens"], ensure_weight_tying=True, grown=4
    ),
    "llama-grown-tokens": dict(r=2, lora_alpha=2, target_modules=["q_proj"], trainable_token_indices=[65, 67], grown=4),
    "llama-tied-grown-tokens": dict(r=2, lora_alpha=2, target_modules=["q_proj"], trainable_token_indices=[65, 67], grown=4),
    # biases
    "gpt2-bias-all": dict(r=2, lora_alpha=2, target_modules=["c_fc"], bias="all", fan_in_fan_out=True),
    "gpt2-bias-lora": dict(r=2, lora_alpha=2, target_modules=["c_attn", "c_fc"], bias="lora_only", fan_in_fan_out=True),
    "gpt2-lora-bias": dict(r=2, lora_alpha=3, target_modules=["c_attn", "c_fc"], lora_bias=True, fan_in_fan_out=True),
    # experts: parameters of three axes, in each order of the axes; in modules of their own, as transformers 4 had them
    "mixtral-packed": dict(
        r=2, lora_alpha=3, target_modules=["q_proj"], target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    ),
    "qwen3_moe-packed": dict(
        r=3, lora_alpha=3, target_modules=[], target_parameters=["experts.down_proj", "experts.gate_up_proj", "mlp.gate.weight"],
        rank_pattern={"down_proj": 2}, alpha_pattern={"down_proj": 5},
    ),
    "qwen3_moe-down": dict(r=3, lora_alpha=3, target_modules=[], target_parameters=["experts.down_proj"]),
    "gpt_oss-packed": dict(
        r=2, lora_alpha=3, target_modules=["q_proj"], target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    ),
    "granitemoe-packed": dict(
        r=2, lora_alpha=3, target_modules=["q_proj"], target_parameters=["experts.gate_up_proj", "experts.down_proj"]
    ),
    "mixtral-each": dict(r=2, lora_alpha=3, target_modules=["q_proj", "w1", "w2", "w3"], by_hand=True),
    "qwen3_moe-each": dict(
        r=2, lora_alpha=3, target_modules=["q_proj", "gate_proj", "up_proj", "down_proj"], use_rslora=False, by_hand=True
    ),
    # keys that say where products are; a base that was changed and changed back
    "llama-some": dict(
        r=2, lora_alpha=3, target_modules=["q_proj", "k_proj", "up_proj", "down_proj"], exclude_modules=["k_proj", "down_proj"], layers_to_transform=[1],
        layers_pattern="layers", init_lora_weights="gaussian", lora_dropout=0.1,
    ),
    "llama-pissa": dict(r=2, lora_alpha=3, target_modules=["q_proj", "up_proj"], init_lora_weights="pissa", converted=True),
}


OURS = ("peft", "grown", "by_hand", "converted")  # what is no key of PEFT


def config_of(name):
    options = {key: value for key, value in CASES[name].items() if key not in OURS}
    return CASES[name].get("peft", LoraConfig)(task_type="CAUSAL_LM", **options)


def folder_of(name):
    parts = name.split("-")
    return FAMILIES / parts[0] / ("tie_word_embeddings" if "tied" in parts else "base")


def base_of(name):
    torch.manual_seed(3)
    base = transformers.AutoModelForCausalLM.from_pretrained(
        folder_of(name), dtype=torch.float32, attn_implementation="eager"
    ).eval()
    if "grown" in CASES[name]:
        base.resize_token_embeddings(base.config.vocab_size + CASES[name]["grown"], mean_resizing=False)
        base.get_input_embeddings().weight.data[-CASES[name]["grown"] :] *= 30
    return base


def logits_of(model, ids):
    with torch.no_grad():
        # those of virtual tokens stand first
        return model(input_ids=ids).logits[:, -ids.shape[1] :].contiguous()


def randomise(model):
    done = set()
    for key, parameter in model.named_parameters():
        if not parameter.requires_grad or parameter.data_ptr() in done:
            continue
        done.add(parameter.data_ptr())
        noise = torch.randn(parameter.shape)
        if "magnitude" in key or "ia3" in key:  # around what they begin with
            parameter.data.copy_(parameter.data * (1 + 0.3 * noise))
        elif "lora_" in key:
            parameter.data.copy_(noise * 0.3)
        elif "modules_to_save" in key or "trainable_tokens" in key or key.endswith("bias"):
            parameter.data.copy_(parameter.data + 0.3 * noise)
        else:
            parameter.data.copy_(noise * 0.5)


def each_expert(name, base):
    """Products of modules that the class no longer has: of every expert apart, and of the router."""
    size, tensors, home = base.config, {}, "mlp"
    parts = {"gate_proj": (0, 1), "up_proj": (0, 1), "down_proj": (1, 0)}
    if name.startswith("mixtral"):
        home, parts = "block_sparse_moe", {"w1": (0, 1), "w3": (0, 1), "w2": (1, 0)}
    width = getattr(size, "moe_intermediate_size", size.intermediate_size)
    sizes = (width, size.hidden_size)
    rank = CASES[name]["r"]
    for i in range(size.num_hidden_layers):
        layer = f"base_model.model.model.layers.{i}"
        q = base.model.layers[i].self_attn.q_proj
        tensors[f"{layer}.self_attn.q_proj.lora_A.weight"] = 0.3 * torch.randn(rank, q.in_features)
        tensors[f"{layer}.self_attn.q_proj.lora_B.weight"] = 0.3 * torch.randn(q.out_features, rank)
        if not hasattr(base.model.layers[i].mlp, "experts"):
            continue
        for e in range(getattr(size, "num_local_experts", None) or size.num_experts):
            for part, (o, k) in parts.items():
                module = f"{layer}.{home}.experts.{e}.{part}"
                tensors[f"{module}.lora_A.weight"] = 0.3 * torch.randn(rank, sizes[k])
                tensors[f"{module}.lora_B.weight"] = 0.3 * torch.randn(sizes[o], rank)
    return tensors


def converted(name, base, folder):
    """What PEFT's documentation advises for PiSSA: the difference to what the adapter began with, for the base as it was."""
    model = get_peft_model(base, config_of(name))
    model.peft_config["default"].init_lora_weights = True
    model.save_pretrained(folder / "begin")
    model.peft_config["default"].init_lora_weights = "pissa"
    for key, parameter in model.named_parameters():
        if "lora_" in key:
            parameter.data += 0.3 * torch.randn(parameter.shape)
    model.eval().save_pretrained(folder, path_initial_model_for_weight_conversion=folder / "begin")
    for file in (folder / "begin").iterdir():
        file.unlink()
    (folder / "begin").rmdir()
    return model


def make(name, folder):
    torch.manual_seed(11)
    ids = torch.randint(0, 64, (2, 9))
    base = base_of(name)
    if "grown" in CASES[name]:
        ids[0, 3], ids[1, 5] = 65, 67
    elif "trainable_token_indices" in CASES[name] or "token_indices" in CASES[name]:
        ids[0, 2:5] = torch.tensor(TOKENS)
    before = logits_of(base, ids)
    torch.manual_seed(12)
    if "converted" in CASES[name]:
        model = converted(name, base, folder)
    elif "by_hand" in CASES[name]:
        config_of(name).save_pretrained(folder)
        save_file(each_expert(name, base), folder / "adapter_model.safetensors", metadata={"format": "pt"})
        model = PeftModel.from_pretrained(base, folder).eval()
    else:
        model = get_peft_model(base, config_of(name)).eval()
        randomise(model)
        model.save_pretrained(folder, save_embedding_layers="grown" in CASES[name] or "auto")
    after = logits_of(model, ids)
    moved = float((after - before).abs().max())
    if moved < MOVED:
        raise SystemExit(f"{name}: the adapter moves the logits by {moved} only")
    (folder / "README.md").unlink(missing_ok=True)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = None  # a path of the machine it was made on
    for key in ("target_modules", "feedforward_modules", "target_parameters", "modules_to_save"):
        if isinstance(config.get(key), list):
            config[key] = sorted(config[key])
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    save_file({"input_ids": ids, "logits": after, "base": before}, folder / "io.safetensors")
    print(name, "moves the logits by", round(moved, 3))


def check(name, folder, io):
    ids = load_file(ADAPTERS / name / "io.safetensors")["input_ids"]
    base = base_of(name)
    before = logits_of(base, ids)
    loaded = PeftModel.from_pretrained(base, folder).eval()
    kept = set(load_file(folder / "adapter_model.safetensors"))
    # PEFT writes the tables of products on tables too, and packs experts
    own = {key for key in get_peft_model_state_dict(loaded) if not key.endswith("base_layer.weight")}
    if kept != own and "by_hand" not in CASES[name]:
        raise SystemExit(f"{name}: names differ: {sorted(kept ^ own)[:4]}")
    compare(name, logits_of(loaded, ids), before, load_file(io)["logits"], MOVED)


def check_own(base, folder, given, io):
    ids = load_file(given)["input_ids"]
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager").eval()
    before = logits_of(model, ids)
    loaded = PeftModel.from_pretrained(model, folder).eval()
    compare(folder, logits_of(loaded, ids), before, load_file(io)["logits"], 10 * TOLERANCE)


def compare(name, theirs, before, ours, least):
    apart = float((theirs - ours.view_as(theirs)).abs().max() / max(1.0, float(theirs.abs().max()) / 10))
    moved = float((theirs - before).abs().max())
    print(f"{name}: logits differ by {apart:.2e}, the adapter moves them by {moved:.3f}")
    if apart > TOLERANCE or moved < least:
        raise SystemExit(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--check", type=pathlib.Path)
    parser.add_argument("--case", choices=sorted(CASES))
    parser.add_argument("--io", type=pathlib.Path)
    parser.add_argument("--base", type=pathlib.Path)
    parser.add_argument("--input", type=pathlib.Path)
    args = parser.parse_args()
    if args.out:
        for case in [args.case] if args.case else CASES:
            (args.out / case).mkdir(parents=True, exist_ok=True)
            make(case, args.out / case)
    if args.check and args.base:
        check_own(args.base, args.check, args.input, args.io)
    elif args.check:
        check(args.case, args.check, args.io)
