"""Makes tests/golden/tasks/choices.json: multiple choice with the tiny Llama of tests/golden/families/llama/base and a small
tokenizer, as lm-evaluation-harness 0.4 scores it: TemplateLM._encode_pair, HFLM._loglikelihood_tokens and
ConfigurableTask.process_results, written again on transformers and tokenizers, a whole forward pass for each choice.

    choices.py --model tests/golden/families/llama/base --out tests/golden/tasks/choices.json
"""

import argparse
import json
import pathlib

import numpy as np
import tokenizers
import torch
import transformers

TEXT = ["the capital of Bern is Basel and the capital of Geneva is Zug", "which city is it? it is a city", "a b c d e. Answer: yes no maybe"] * 3
EXAMPLES = [
    {"context": "the capital of it is", "choices": ["Bern", "Geneva", "Basel", "Zug"], "gold": 0},
    {"query": "which city is it? Answer: ", "choices": ["a city", "no", "a b c d e"], "gold": "no"},
    {"prompt": "", "choices": ["yes", "no maybe", "Basel is it"], "answer": 2},
    {"context": "is it yes?  \n", "choices": ["yes", "no"], "gold": [0, 1]},
    {"context": "the capital of the capital of the capital of Geneva is", "choices": ["Zug", "Zug", "Bern"], "gold": 1},
    {"context": "Answer:", "choices": ["maybe", "no"], "gold": 1, "delimiter": ""},
]


def tokenizer():
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    special = "<|endoftext|>"
    made.train_from_iterator(TEXT + ["\n"], tokenizers.trainers.BpeTrainer(vocab_size=60, special_tokens=[special], show_progress=False))
    made.post_processor = tokenizers.processors.TemplateProcessing(single=f"{special} $A", special_tokens=[(special, 0)])
    return made


def encode_pair(tok, context, continuation):
    encode = lambda text: tok.encode(text, add_special_tokens=False).ids
    n_spaces = len(context) - len(context.rstrip())
    if n_spaces > 0:
        continuation = context[-n_spaces:] + continuation
        context = context[:-n_spaces]
    if context == "":
        ids = encode(continuation)
        return ([0], ids) if ids[0] != 0 else (ids[:1], ids[1:])
    whole, before = encode(context + continuation), encode(context)
    return before, whole[len(before):]


def truncated(context, continuation, max_length):
    kept = (context + continuation)[-(max_length + 1):]
    return kept[:len(kept) - len(continuation)], continuation


def log_likelihood(model, context, continuation):
    with torch.no_grad():
        logits = model(torch.tensor([(context + continuation)[:-1]])).logits[0].double()
    log_p = torch.log_softmax(logits, -1)[-len(continuation):]
    return float(log_p.gather(1, torch.tensor(continuation).unsqueeze(1)).sum())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    tok = tokenizer()
    out = {"reference": f"transformers {transformers.__version__}, tokenizers {tokenizers.__version__}", "generator": "tools/golden/choices.py",
           "tokenizer": json.loads(tok.to_str()), "examples": EXAMPLES, "results": [], "encoded": []}
    for example in EXAMPLES:
        context = next(example[key] for key in ("context", "query", "prompt") if key in example)
        choices, delimiter = example["choices"], example.get("delimiter", " ")
        lls = [log_likelihood(model, *encode_pair(tok, context, delimiter + choice)) for choice in choices]
        alone = [log_likelihood(model, *encode_pair(tok, "", delimiter + choice)) for choice in choices]
        gold = example.get("gold", example.get("answer"))
        gold = [choices.index(g) if isinstance(g, str) else g for g in (gold if isinstance(gold, list) else [gold])]
        lengths = np.array([float(len(c)) for c in choices])
        sizes = np.array([float(len(c.encode())) for c in choices])
        right = lambda values: int(int(np.argmax(values)) in gold)
        out["results"].append({"log_likelihoods": lls, "unconditional": alone, "choice": int(np.argmax(lls)), "gold": gold, "acc": right(lls),
                               "acc_norm": right(np.array(lls) / lengths), "acc_bytes": right(np.array(lls) / sizes),
                               "acc_mutual_info": right(np.array(lls) - np.array(alone))})
        for limit in (1000, 12):
            before, after = encode_pair(tok, context, delimiter + choices[0])
            before, after = truncated(before, after, limit)
            out["encoded"].append({"context": context, "continuation": delimiter + choices[0], "limit": limit, "tokens": before + after,
                                   "context_tokens": len(before)})
    values = {}
    for name in ("acc", "acc_norm", "acc_bytes", "acc_mutual_info"):
        scores = np.array([result[name] for result in out["results"]], dtype=float)
        values[name] = [float(scores.mean()), float(scores.std(ddof=1) / np.sqrt(len(scores)))]
    out["scores"] = values
    args.out.parent.mkdir(exist_ok=True)
    args.out.write_text(json.dumps(out) + "\n")


main()
