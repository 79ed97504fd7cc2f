"""What transformers makes of SmolLM2-135M-Instruct (Q4_1 GGUF): loss over one window, greedy text.

    python tools/golden/smollm2_eval.py [--model FILE.gguf] [--out tests/golden/smollm2.json]

The weights are dequantised to float32, so the numbers hold for an exact dequantisation; an engine
that quantises its activations as well is allowed to differ by what that costs. The text is
$TESSERA_TEST_DATA/text/wikitext2.test.txt, tokenised with the vocabulary and merges in the GGUF.
"""

import argparse
import hashlib
import json
import os
import pathlib

import gguf
import numpy
import tokenizers
import torch
import transformers

TOKENS = 2000
PROMPT = "The capital of France is"
NEW_TOKENS = 32
HOME = pathlib.Path.home() / ".cache/tessera/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def halves(rows, heads):
    """Rows of each head from pair order back to half order."""
    split = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)


def read_model(reader, field):
    config = transformers.LlamaConfig(
        vocab_size=field("llama.vocab_size"),
        hidden_size=field("llama.embedding_length"),
        intermediate_size=field("llama.feed_forward_length"),
        num_hidden_layers=field("llama.block_count"),
        num_attention_heads=field("llama.attention.head_count"),
        num_key_value_heads=field("llama.attention.head_count_kv"),
        max_position_embeddings=field("llama.context_length"),
        rms_norm_eps=field("llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": field("llama.rope.freq_base")},
        tie_word_embeddings=True,
    )
    config._attn_implementation = "eager"
    state = {}
    for tensor in reader.tensors:
        value = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        parts = tensor.name.split(".")
        if parts[0] != "blk":
            name = {"token_embd": "embed_tokens", "output_norm": "norm"}[parts[0]]
            state[f"model.{name}.weight"] = torch.from_numpy(value.copy())
            continue
        if parts[2] == "attn_q":
            value = halves(value, config.num_attention_heads)
        if parts[2] == "attn_k":
            value = halves(value, config.num_key_value_heads)
        name = f"model.layers.{parts[1]}.{NAMES[parts[2]]}.weight"
        state[name] = torch.from_numpy(numpy.ascontiguousarray(value))
    model = transformers.LlamaForCausalLM(config).eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert missing == ["lm_head.weight"] and not unexpected, (missing, unexpected)
    model.tie_weights()
    return model


def read_tokenizer(field):
    """Byte-level BPE whose pre-tokenizer "smollm" splits digits, then words as GPT-2 does."""
    assert field("tokenizer.ggml.model") == "gpt2" and field("tokenizer.ggml.pre") == "smollm"
    vocabulary = {token: index for index, token in enumerate(field("tokenizer.ggml.tokens"))}
    merges = [tuple(merge.split(" ")) for merge in field("tokenizer.ggml.merges")]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer


def control_tokens(field):
    kinds = field("tokenizer.ggml.token_type")
    tokens = field("tokenizer.ggml.tokens")
    return [token for token, kind in zip(tokens, kinds) if kind == int(gguf.TokenType.CONTROL)]


@torch.no_grad()
def losses(model, ids):
    """-log p of every token but the first, given all before it."""
    logits = model(torch.tensor([ids]), use_cache=False).logits[0, :-1].double()
    return -logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


@torch.no_grad()
def greedy(model, ids):
    found, margins = list(ids), []
    for _ in range(NEW_TOKENS):
        best = model(torch.tensor([found]), use_cache=False).logits[0, -1].topk(2)
        margins.append(float(best.values[0] - best.values[1]))
        found.append(int(best.indices[0]))
    return found[len(ids) :], margins


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=pathlib.Path, default=HOME)
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("tests/golden/smollm2.json")
    )
    options = parser.parse_args()
    torch.set_num_threads(2)
    text_file = pathlib.Path(os.environ["TESSERA_TEST_DATA"], "text/wikitext2.test.txt")
    text = text_file.read_bytes().decode("utf-8")

    reader = gguf.GGUFReader(str(options.model))
    field = lambda name: reader.fields[name].contents()
    tokenizer = read_tokenizer(field)
    found = [token for token in control_tokens(field) if token in text]
    assert not found, f"control tokens in the text: {found}"
    ids = tokenizer.encode(text, add_special_tokens=False).ids[:TOKENS]
    prompt = tokenizer.encode(PROMPT, add_special_tokens=False).ids

    model = read_model(reader, field)
    loss = losses(model, ids)
    tokens, margins = greedy(model, prompt)
    prefix = tokenizer.decode(ids)
    golden = {
        "case": "smollm2",
        "reference": "transformers LlamaForCausalLM, eager attention, CPU, dequantised weights",
        "version": f"transformers {transformers.__version__}, torch {torch.__version__}, "
        f"gguf 0.19.0, tokenizers {tokenizers.__version__}",
        "generator": "tools/golden/smollm2_eval.py",
        "dtype": "float32, log-softmax in float64",
        "model": options.model.name,
        "model_sha256": sha256(options.model),
        "text": "text/wikitext2.test.txt",
        "text_sha256": sha256(text_file),
        "window": "the first 2,000 tokens in one piece, no BOS; 1,999 targets",
        "tokens": len(ids),
        "targets": len(loss),
        "bytes": len(prefix.encode("utf-8")),
        "ids_sha256_of": "the ids as little-endian int32",
        "ids_sha256": hashlib.sha256(numpy.array(ids, "<i4").tobytes()).hexdigest(),
        "first_ids": ids[:20],
        "last_ids": ids[-8:],
        "nll": round(float(loss.mean()), 6),
        "perplexity": round(float(loss.mean().exp()), 4),
        "first_losses": [round(float(value), 5) for value in loss[:8]],
        "mean_losses_of_250": [round(float(part.mean()), 5) for part in loss.split(250)],
        "tolerance": {"nll": 1e-4, "first_losses": 1e-3},
        "greedy": {
            "prompt": PROMPT,
            "prompt_ids": prompt,
            "ids": tokens,
            "text": tokenizer.decode(tokens),
            "margins": [round(value, 3) for value in margins],
        },
        "why": "a real model from its GGUF: dequantisation, row order, tokenizer and forward pass",
    }
    assert text.startswith(prefix), "the ids do not decode to the text's beginning"
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(golden, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
