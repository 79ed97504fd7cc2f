"""What forced ids do to a text: tests/golden/forced.json, from the tiny BART of tests/golden/families.

    python tools/golden/forced.py --families tests/golden/families --out tests/golden/forced.json

Greedy and by beams, with an id forced to the beginning, to the end, to both, and to neither. The
bias of the logits that BART adds after its head is part of the model. A case is kept only where no
choice was nearly another (greedy) or the best and the second-best score differ clearly (beams).
"""

import argparse
import json
import pathlib

import torch
import transformers

import reference

FORCED = [(None, None), (7, None), (None, 2), (7, 2), (40, 59)]  # begin, end
BEAMS, PROMPTS, NEW_TOKENS, MIN_MARGIN = (1, 3), 4, 8, 2e-3
ENDS = [2, 61]


@torch.no_grad()
def answer(model, source, beams, begin, end):
    found = model.generate(
        input_ids=source,
        num_beams=beams,
        early_stopping="never" if beams > 1 else False,
        length_penalty=1.0,
        max_new_tokens=NEW_TOKENS,
        eos_token_id=ENDS,
        forced_bos_token_id=begin,
        forced_eos_token_id=end,
        no_repeat_ngram_size=0,
        do_sample=False,
        use_cache=False,
        num_return_sequences=min(beams, 2),
        return_dict_in_generate=True,
        output_scores=True,
    )
    ids = found.sequences[0, 1:].tolist()
    length = next((i for i, token in enumerate(ids) if token in ENDS), len(ids))
    if beams > 1:
        margin = float(found.sequences_scores[0] - found.sequences_scores[1])
    else:
        best = [step[0].topk(2).values for step in found.scores[: length + 1]]
        margin = min(float(b[0] - b[1]) for b in best)
    return ids[:length], length < len(ids), margin


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    folder = options.families / "bart" / "base"
    config = json.loads((folder / "config.json").read_text())
    model = reference.load(
        "BartForConditionalGeneration", config, folder / "model.safetensors", extra_allowed=True
    )
    cases = []
    for beams in BEAMS:
        for begin, end in FORCED:
            for n in range(PROMPTS):
                ids = reference.generator("forced", n).integers(3, config["vocab_size"], (1, 4 + n))
                tokens, ended, margin = answer(model, torch.from_numpy(ids), beams, begin, end)
                if margin < MIN_MARGIN:
                    continue
                cases.append(
                    {
                        "beams": beams,
                        "forced_begin": begin,
                        "forced_end": end,
                        "source": ids[0].tolist(),
                        "tokens": tokens,
                        "ended": ended,
                    }
                )
    story = {
        "case": "forced",
        "reference": "transformers generate(forced_bos_token_id, forced_eos_token_id)",
        "version": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "generator": "tools/golden/forced.py",
        "seed": reference.SEED,
        "model": "families/bart/base",
        "max_new_tokens": NEW_TOKENS,
        "stop_ids": ENDS,
        "why": "forced ids at both ends, greedy and by beams",
        "cases": cases,
    }
    options.out.write_text(json.dumps(story, indent=1) + "\n")


if __name__ == "__main__":
    main()
