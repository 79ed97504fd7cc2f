"""What beam search finds: tests/golden/beams.json, from the tiny T5 of tests/golden/families.

    python tools/golden/beams.py --families tests/golden/families --out tests/golden/beams.json

The reference runs with early_stopping="never": it then stops when no hypothesis can improve, which
is what ours does (False, its default, stops by an estimate). A case is kept only where the best and
the second-best score differ clearly, so that rounding cannot decide it.
"""

import argparse
import json
import pathlib

import torch
import transformers

import reference

CASES = [(2, 1.0), (3, 1.0), (4, 0.0), (4, 2.0), (5, -1.0), (8, 0.6)]  # beams, length penalty
PROMPTS, NEW_TOKENS, MIN_MARGIN = 6, 10, 2e-3
ENDS = [42, 2]  # ids that often come, so that hypotheses end


@torch.no_grad()
def search(model, prompt, beams, penalty):
    found = model.generate(
        input_ids=prompt,
        num_beams=beams,
        length_penalty=penalty,
        early_stopping="never",
        max_new_tokens=NEW_TOKENS,
        eos_token_id=ENDS,
        do_sample=False,
        use_cache=False,  # the cache counts the layers of the encoder
        num_return_sequences=2,
        return_dict_in_generate=True,
        output_scores=True,
    )
    scores = found.sequences_scores
    ids = found.sequences[0, 1:].tolist()
    length = next((i for i, token in enumerate(ids) if token in ENDS), len(ids))
    margin = float(scores[0] - scores[1])
    return ids[:length], length < len(ids), float(scores[0]), margin


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    folder = options.families / "t5" / "v1_1"
    config = json.loads((folder / "config.json").read_text())
    model = reference.load(
        "T5ForConditionalGeneration", config, folder / "model.safetensors", extra_allowed=True
    )
    cases = []
    for beams, penalty in CASES:
        for n in range(PROMPTS):
            ids = reference.generator("beams", n).integers(3, config["vocab_size"], (1, 3 + n))
            tokens, ended, score, margin = search(model, torch.from_numpy(ids), beams, penalty)
            if margin < MIN_MARGIN:
                continue
            cases.append(
                {
                    "beams": beams,
                    "length_penalty": penalty,
                    "source": ids[0].tolist(),
                    "tokens": tokens,
                    "ended": ended,
                    "score": round(score, 5),
                    "margin": round(margin, 5),
                }
            )
    story = {
        "case": "beams",
        "reference": "transformers generate(num_beams, early_stopping='never')",
        "version": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "generator": "tools/golden/beams.py",
        "seed": reference.SEED,
        "model": "families/t5/v1_1",
        "max_new_tokens": NEW_TOKENS,
        "stop_ids": ENDS,
        "why": "ended and unended texts, penalties of both signs",
        "cases": cases,
    }
    options.out.write_text(json.dumps(story, indent=1) + "\n")
    ended = sum(case["ended"] for case in cases)
    print(f"{len(cases)} cases, {ended} ended")


if __name__ == "__main__":
    main()
