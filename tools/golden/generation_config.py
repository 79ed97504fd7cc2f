"""What keys of generation_config.json do to a text: tests/golden/generation_config.json, from the tiny
BART and Llama of tests/golden/families.

    python tools/golden/generation_config.py --families tests/golden/families --out tests/golden/generation_config.json

Every case is a file as generate() of transformers reads it, greedy or by beams. A case is kept only
where no choice was nearly another (greedy) or the best and the second-best score differ clearly
(beams). `changed` says whether the text is another one without the keys (or, of keys of a search,
without this one).
"""

import argparse
import json
import pathlib

import torch
import transformers

import reference

MODELS = {"families/bart/base": "BartForConditionalGeneration", "families/llama/base": "LlamaForCausalLM"}
NEW_TOKENS, PROMPTS, MIN_MARGIN = 12, 4, 2e-3
EOS = [2, 61]


def cases_of(plain):
    """Keys to try where the text without them is `plain`."""
    first, second = plain[0], plain[1]
    yield from (
        {"repetition_penalty": 1.4},
        {"no_repeat_ngram_size": 2},
        {"no_repeat_ngram_size": 1},
        {"encoder_repetition_penalty": 2.5},
        {"encoder_no_repeat_ngram_size": 1},
        {"encoder_no_repeat_ngram_size": 2},
        {"suppress_tokens": [first, second]},
        {"begin_suppress_tokens": [first]},
        {"bad_words_ids": [[first], [second, plain[2]]]},
        {"bad_words_ids": [[2], [first, second]]},
        {"sequence_bias": [[[first], -7.5], [[second, plain[2]], -9.0], [[5], 0.5]]},
        {"sequence_bias": [[[9, 9], 30.0], [[9], 6.0]], "repetition_penalty": 1.2},
        {"min_new_tokens": 9, "eos_token_id": [first, second]},
        {"min_length": 10, "eos_token_id": [first, second]},
        {"max_length": 9},
        {"max_new_tokens": 5},
        {"exponential_decay_length_penalty": [2, 1.8], "eos_token_id": [second, 33]},
        {"exponential_decay_length_penalty": [1, 4.0]},
        {"forced_bos_token_id": 7},
        {"forced_eos_token_id": 2},
        {"forced_eos_token_id": 2, "max_length": 8},
        {"no_repeat_ngram_size": 2, "repetition_penalty": 1.2, "suppress_tokens": [first]},
        {"num_beams": 3},
        {"num_beams": 4, "early_stopping": True, "eos_token_id": [first, second, 2]},
        {"num_beams": 4, "early_stopping": False, "eos_token_id": [first, second, 2]},
        {"num_beams": 4, "early_stopping": "never", "eos_token_id": [first, second, 2]},
        {"num_beams": 4, "length_penalty": 3.0, "eos_token_id": [first, second, 2]},
        {"num_beams": 4, "length_penalty": -1.0, "eos_token_id": [first, second, 2]},
        {"num_beams": 3, "no_repeat_ngram_size": 1},
        {"num_beams": 3, "repetition_penalty": 1.5},
        {"num_beams": 3, "repetition_penalty": 1.5, "renormalize_logits": True},
        {"num_beams": 3, "suppress_tokens": list(range(20, 50)), "renormalize_logits": True},
        {"num_beams": 3, "suppress_tokens": [first], "begin_suppress_tokens": [second]},
        {"num_beams": 3, "bad_words_ids": [[first, second], [second]]},
        {"num_beams": 3, "sequence_bias": [[[first], -5.0], [[5, 6], 8.0]]},
        {"num_beams": 3, "min_length": 9, "eos_token_id": [first, second]},
        {"num_beams": 3, "exponential_decay_length_penalty": [2, 1.5]},
        {"num_beams": 4, "early_stopping": True, "no_repeat_ngram_size": 3, "min_length": 6, "max_length": 14,
         "length_penalty": 2.0, "forced_eos_token_id": 2},
    )


@torch.no_grad()
def text_of(model, prompt, config):
    """New tokens up to the end, whether there is one, and how far the nearest other choice was."""
    beams = config.get("num_beams", 1)
    settings = {"eos_token_id": EOS, "pad_token_id": 0} | config
    if model.config.is_encoder_decoder:
        settings["decoder_start_token_id"] = model.config.decoder_start_token_id
    if not {"max_length", "max_new_tokens"} & set(config):
        settings["max_new_tokens"] = NEW_TOKENS
    model.generation_config = transformers.GenerationConfig()
    found = model.generate(
        input_ids=prompt,
        generation_config=transformers.GenerationConfig(
            **settings, do_sample=False, num_return_sequences=min(beams, 2)
        ),
        use_cache=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    begin = 1 if model.config.is_encoder_decoder else prompt.shape[1]
    ids = found.sequences[0, begin:].tolist()
    ends = settings["eos_token_id"]
    length = next((i for i, token in enumerate(ids) if token in ends), len(ids))
    if beams > 1:
        margin = float(found.sequences_scores[0] - found.sequences_scores[1])
    else:
        best = [step[0].topk(2).values for step in found.scores[: length + 1]]
        margin = min(float(b[0] - b[1]) for b in best)
    return ids[:length], length < len(ids), margin


def base_of(config):
    """The same search or greedy text without what the case is about."""
    rest = {k: config[k] for k in ("num_beams", "eos_token_id") if k in config}
    search = {"early_stopping", "length_penalty", "renormalize_logits"} & set(config)
    if config.get("num_beams", 1) > 1 and not search and len(config) > 1:
        return rest
    if search:
        return {k: v for k, v in config.items() if k not in search}
    rest.pop("num_beams", None)
    return rest


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    models, count = {}, 0
    for name, cls in MODELS.items():
        folder = options.families.parent / name
        config = json.loads((folder / "config.json").read_text())
        model = reference.load(cls, config, folder / "model.safetensors", extra_allowed=True)
        cases = []
        for n in range(PROMPTS):
            ids = reference.generator("generation_config", n).integers(3, config["vocab_size"], (1, 4 + n))
            prompt = torch.from_numpy(ids)
            plain, _, _ = text_of(model, prompt, {})
            if len(plain) < 3:
                continue
            for case in cases_of(plain):
                tokens, ended, margin = text_of(model, prompt, case)
                if not margin >= MIN_MARGIN:
                    continue
                other = text_of(model, prompt, base_of(case))[0]
                cases.append(
                    {
                        "config": {"eos_token_id": EOS} | case,
                        "prompt": ids[0].tolist(),
                        "tokens": tokens,
                        "ended": ended,
                        "changed": tokens != other,
                        "margin": round(margin, 5) if margin < float("inf") else None,
                    }
                )
        models[name] = cases
        count += len(cases)
    story = {
        "case": "generation_config",
        "reference": "transformers generate(generation_config=...)",
        "version": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "generator": "tools/golden/generation_config.py",
        "seed": reference.SEED,
        "max_new_tokens": NEW_TOKENS,
        "models": models,
    }
    options.out.write_text(json.dumps(story) + "\n")
    print(f"{count} cases, {sum(c['changed'] for m in models.values() for c in m)} changed")


if __name__ == "__main__":
    main()
