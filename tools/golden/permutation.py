"""What transformers' XLNet says of tokens in an order: two-stream attention, as it is pre-trained.

    python tools/golden/permutation.py --out tests/golden/permutation.json

The model is the golden family's (tests/golden/families/xlnet/base). What stands for tokens that are asked
for is the row `mask_id` of its table. Ranks: 0 is given from the beginning, others one after another.
"""

import argparse
import json
import pathlib

import torch
import transformers

MASK_ID = 6
CASES = [
    # one token is asked for; all but one; some, far apart; the first and the last. Where nothing is given the reference's
    # first query sees all of the text, its own token too: masks are subtracted, and all are masked alike.
    {"ids": [9, 20, 11, 8, 30], "ranks": [0, 0, 1, 0, 0]},
    {"ids": [7, 12, 25, 31], "ranks": [3, 1, 0, 2]},
    {"ids": [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20], "ranks": [0, 2, 0, 0, 3, 1, 0, 0, 0, 4, 0]},
    {"ids": [21, 5, 17, 29, 14, 8, 23], "ranks": [2, 0, 0, 3, 0, 0, 1]},
]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, required=True)
    out = parser.parse_args().out
    base = out.parent / "families" / "xlnet" / "base"
    model = transformers.XLNetLMHeadModel.from_pretrained(base, attn_implementation="eager").eval()
    with torch.no_grad():
        model.transformer.mask_emb.copy_(model.transformer.word_embedding.weight[MASK_ID].reshape(1, 1, -1))
    cases = []
    for case in CASES:
        ids, ranks = torch.tensor([case["ids"]]), torch.tensor(case["ranks"])
        hidden = ranks[None, :] >= ranks[:, None]  # row: who asks
        hidden[:, ranks == 0] = False
        places = [i for i, rank in enumerate(case["ranks"]) if rank > 0]
        mapping = torch.zeros(1, len(places), len(ranks), dtype=torch.float32)
        for m, place in enumerate(places):
            mapping[0, m, place] = 1
        with torch.no_grad():
            logits = model(ids, perm_mask=hidden[None].float(), target_mapping=mapping).logits[0]
        nll = torch.nn.functional.cross_entropy(logits, ids[0, places])
        cases.append({**case, "logits": [[round(x, 7) for x in row] for row in logits.tolist()], "nll": nll.item()})
    golden = {
        "case": "permutation",
        "reference": "transformers XLNetLMHeadModel with perm_mask and target_mapping, eager attention, float32",
        "version": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "generator": "tools/golden/permutation.py",
        "weights": "families/xlnet/base",
        "mask_id": MASK_ID,
        "cases": cases,
    }
    out.write_text(json.dumps(golden) + "\n")


main()
