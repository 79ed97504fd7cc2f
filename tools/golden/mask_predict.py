"""A small pair whose decoder sees targets whole, in plain numpy: the loss of masked tokens and of lengths, and
Mask-Predict's decoding (Ghazvininejad et al. 2019, arXiv:1904.09324, sec. 2 and 3), written from the paper.

    python tools/golden/mask_predict.py --out tests/golden/mask_predict.json

Weights: element n of parameter k is shift + scale sin(a n + b), see "weights".
"""

import argparse
import json
import pathlib

import numpy as np

VOCAB, D, HEADS, HIDDEN, LONGEST, POSITIONS, MASK = 9, 6, 2, 10, 6, 8, 8
SPEC = {
    "tessera": 1, "arch": "encoder_decoder", "vocab": VOCAB, "d_model": D, "mask": MASK,
    "embed": {"type": "token", "position": {"type": "learned", "n_positions": POSITIONS}},
    "norm": {"type": "rms_norm", "eps": 1e-6},
    "mixer": {"type": "attention", "n_heads": HEADS}, "cross": {"type": "cross_attention", "n_heads": HEADS},
    "ffn": {"type": "mlp", "act": "relu", "d_hidden": HIDDEN},
    "stacks": {"encoder": {"layers": [{}], "heads": [{"type": "classifier", "n_labels": LONGEST},
                                                     {"type": "pooler", "of": "mean", "dense": False, "act": "identity"}]},
               "decoder": {"layers": [{"repeat": 2}]}},
    "head": {"type": "tied"},
}


def shapes():
    out = {"embed.token.weight": [VOCAB, D], "encoder.head.weight": [LONGEST, D], "encoder.head.bias": [LONGEST]}
    for stack, layers in (("encoder", 1), ("decoder", 2)):
        out[f"{stack}.embed.position.weight"] = [POSITIONS, D]
        out[f"{stack}.final_norm.weight"] = [D]
        for i in range(layers):
            at = f"{stack}.layers.{i}."
            for branch in ("mixer", "cross") if stack == "decoder" else ("mixer",):
                out[at + branch + "_norm.weight"] = [D]
                for name in "qkvo":
                    out[at + f"{branch}.{name}.weight"] = [D, D]
            out[at + "ffn_norm.weight"] = [D]
            out[at + "ffn.up.weight"], out[at + "ffn.up.bias"] = [HIDDEN, D], [HIDDEN]
            out[at + "ffn.down.weight"], out[at + "ffn.down.bias"] = [D, HIDDEN], [D]
    return out


def drawn():
    how, values = {}, {}
    for k, (name, shape) in enumerate(sorted(shapes().items())):
        norm = name.endswith("norm.weight")
        one = {"shape": shape, "a": round(1.3 + 0.71 * k, 2), "b": round(0.2 * k, 2), "scale": 0.2 if norm else 1.4,
               "shift": 1 if norm else 0}
        n = np.arange(int(np.prod(shape)), dtype=np.float64)
        how[name] = one
        values[name] = (one["shift"] + one["scale"] * np.sin(n * one["a"] + one["b"])).reshape(shape)
    return how, values


def rms_norm(x, w):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


class Model:
    def __init__(self, weights):
        self.w = weights

    def attention(self, at, x, seen):
        q, k, v = x @ self.w[at + "q.weight"].T, seen @ self.w[at + "k.weight"].T, seen @ self.w[at + "v.weight"].T
        size, out = D // HEADS, []
        for h in range(HEADS):
            part = slice(h * size, (h + 1) * size)
            out.append(softmax(q[:, part] @ k[:, part].T / np.sqrt(size)) @ v[:, part])
        return np.concatenate(out, -1) @ self.w[at + "o.weight"].T

    def stack(self, name, layers, ids, source=None):
        x = self.w["embed.token.weight"][ids] + self.w[f"{name}.embed.position.weight"][: len(ids)]
        for i in range(layers):
            at = f"{name}.layers.{i}."
            y = rms_norm(x, self.w[at + "mixer_norm.weight"])
            x = x + self.attention(at + "mixer.", y, y)  # no token is hidden from any other
            if source is not None:
                x = x + self.attention(at + "cross.", rms_norm(x, self.w[at + "cross_norm.weight"]), source)
            y = rms_norm(x, self.w[at + "ffn_norm.weight"])
            y = np.maximum(y @ self.w[at + "ffn.up.weight"].T + self.w[at + "ffn.up.bias"], 0)
            x = x + y @ self.w[at + "ffn.down.weight"].T + self.w[at + "ffn.down.bias"]
        return rms_norm(x, self.w[name + ".final_norm.weight"])

    def encode(self, source):
        return self.stack("encoder", 1, source)

    def lengths(self, encoded):
        return encoded.mean(0) @ self.w["encoder.head.weight"].T + self.w["encoder.head.bias"]

    def logits(self, ids, encoded):
        return self.stack("decoder", 2, ids, encoded) @ self.w["embed.token.weight"].T


def decode(model, source, iterations, candidates):
    encoded = model.encode(source)
    lengths = sorted(range(1, LONGEST + 1), key=lambda n: -model.lengths(encoded)[n - 1])[:candidates]
    texts = []
    for n in lengths:
        y, p = np.full(n, MASK), np.full(n, -np.inf)
        masked = list(range(n))  # t = 0: all of them
        for t in range(iterations):
            if t > 0:
                count = int(n * (iterations - t) / iterations)
                masked = sorted(range(n), key=lambda i: (p[i], i))[:count]
                if count == 0:
                    break
            read = y.copy()
            read[masked] = MASK
            logits = model.logits(read, encoded)
            logits[:, MASK] = -np.inf
            of_token = log_softmax(logits)
            for i in masked:
                y[i] = of_token[i].argmax()
                p[i] = of_token[i].max()
        texts.append((n, y.tolist(), float(p.mean())))
    best = max(texts, key=lambda text: text[2])
    return lengths, texts, best[1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, required=True)
    out = parser.parse_args().out
    how, weights = drawn()
    model = Model(weights)
    pairs = [  # source, text with masks, what is asked there (-1: nothing)
        ([1, 2, 3], [MASK, 5, MASK, 2], [4, -1, 0, -1]),
        ([7], [MASK], [3]),
        ([4, 4, 0, 6, 1], [2, MASK, MASK, MASK, 1, 6], [-1, 5, 5, 7, -1, -1]),
    ]
    nll, hits, of_lengths, rows = [], 0, [], []
    for source, text, asked in pairs:
        encoded = model.encode(source)
        of_token = log_softmax(model.logits(np.array(text), encoded))
        rows += of_token.tolist()
        nll += [-of_token[i, y] for i, y in enumerate(asked) if y >= 0]
        hits += sum(int(of_token[i].argmax() == y) for i, y in enumerate(asked) if y >= 0)
        of_lengths.append(-log_softmax(model.lengths(encoded))[len(text) - 1])
    decoded = []
    for source in ([1, 2, 3], [7], [4, 4, 0, 6, 1], [5, 0, 5, 0, 2, 3, 1]):
        for iterations, candidates in ((1, 1), (2, 1), (4, 1), (3, 2), (2, 6), (10, 5)):
            lengths, texts, best = decode(model, source, iterations, candidates)
            decoded.append({"source": source, "iterations": iterations, "candidates": candidates, "lengths": lengths,
                            "texts": [{"tokens": y, "mean_log_p": p} for _, y, p in texts], "best": best})
    golden = {
        "case": "mask_predict", "reference": "numpy, written from arXiv:1904.09324", "version": np.__version__,
        "generator": "tools/golden/mask_predict.py", "spec": SPEC, "weights": how,
        "pairs": [{"source": s, "text": t, "asked": a} for s, t, a in pairs],
        "nll": float(np.mean(nll)), "hits": hits, "length_nll": float(np.mean(of_lengths)), "log_p": rows,
        "decoded": decoded,
    }
    out.write_text(json.dumps(golden) + "\n")


main()
