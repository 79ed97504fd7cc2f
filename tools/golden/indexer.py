"""The numbers of src/tessera/nn/select/indexer_test.cpp, in numpy and double: index scores, chosen keys, what is read from them, the KL.

    python tools/golden/indexer.py

Formulas: DeepSeek-V3.2, arXiv:2512.02556, sec. 2.1. Of equal scores the earlier key is chosen.
"""

import numpy as np

T, H, D, V, TOP = 5, 2, 4, 2, 2


def gen(shape, a, b):
    return np.sin(a * np.arange(np.prod(shape)) + b).reshape(shape)


def turned(x):
    """The first two channels by the angle of the position, theta^0 = 1."""
    p = np.arange(T, dtype=float).reshape((T,) + (1,) * (x.ndim - 2))
    c, s, out = np.cos(p), np.sin(p), x.copy()
    out[..., 0], out[..., 1] = x[..., 0] * c - x[..., 1] * s, x[..., 0] * s + x[..., 1] * c
    return out


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def main():
    k = gen((T, D), 0.8, 0.2)
    k = (k - k.mean(-1, keepdims=True)) / np.sqrt(k.var(-1, keepdims=True) + 1e-6)
    q, k, w = turned(gen((T, 2, D), 0.5, 0.3)), turned(k), gen((T, 2), 0.6, 0.9) / np.sqrt(2)
    scores = np.einsum("th,ths->ts", w, np.maximum(0, np.einsum("thd,sd->ths", q, k) / np.sqrt(D)))
    main_q, main_k, v = gen((H, T, D), 0.7, 0.1), gen((H, T, D), 1.1, 0.4), gen((H, T, V), 0.9, 0.2)
    logits = np.einsum("htd,hsd->hts", main_q, main_k) / 2
    for t in range(T):
        every = list(range(t + 1))
        chosen = sorted(sorted(every, key=lambda s: (-scores[t, s], s))[:TOP])
        out = softmax(logits[0, t, chosen]) @ v[0, chosen]
        kl = []
        dense = softmax(logits[:, t, every]).mean(0)
        for keys in (every, chosen):
            p = dense[keys] / dense[keys].sum()
            kl.append(float((p * np.log(p / softmax(scores[t, keys]))).sum()))
        print(f"{t}: scores {np.round(scores[t, : t + 1], 8) + 0.0} keys {chosen} out {np.round(out, 8)} KL dense {kl[0]:.8f} chosen {kl[1]:.8f}")


if __name__ == "__main__":
    main()
