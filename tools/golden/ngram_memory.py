"""The numbers of engram_test.cpp, gated_hyper_connections_test.cpp and pooled_indexer_test.cpp (src/tessera/nn), in numpy and double.

    python tools/golden/ngram_memory.py [--check]

Formulas: Engram, arXiv:2601.07372, sec. 2, with the hash of Qwen4-Exp; the others as transformers 5.24 has them in qwen4_exp. --check compares the
hash with that of transformers.
"""

import sys

import numpy as np

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15


def gen(shape, a, b):
    return np.sin(a * np.arange(np.prod(shape)) + b).reshape(shape)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def rms(x, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# -- n-grams ---------------------------------------------------------------------------------


def splitmix64(x):
    x = (x + GAMMA) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def factors(vocab, ngram, index, seed):
    half = max(1, ((1 << 63) - 1) // vocab // 2)
    return [2 * (splitmix64((seed + 10007 * index + GAMMA * (m + 1)) & MASK) % half) + 1 for m in range(ngram)]


def primes(least, first, count):
    found, n = [], least
    while len(found) < first + count:
        if n > 1 and all(n % d for d in range(2, int(n**0.5) + 1)):
            found.append(n)
        n += 1
    return found[first:]


def rows_of(ids, pad, cut, a, sizes, heads):
    out = []
    for t in range(len(ids)):
        run = [ids[t]]
        for m in range(1, len(a)):
            ended = t - m < 0 or (cut and pad in ids[t - m : t])
            run.append(pad if ended else ids[t - m])
        own, offset = [], 0
        for n in range(2, len(a) + 1):
            mix = 0
            for m in range(n):
                mix ^= run[m] * a[m]
            for j in range(heads):
                size = sizes[(n - 2) * heads + j]
                own.append(offset + mix % size)
                offset += size
        out.append(own)
    return out


def engram(e, h, w, streams, taps, dilation, eps):
    """e [T, E], h [T, S D] -> [T, S D]."""
    t, d = len(h), h.shape[1] // streams
    norm = lambda x, name: (rms(x.reshape(t, streams, d), eps) * w[name].reshape(streams, d))  # noqa: E731
    z = (norm(e @ w["key"].T, "key_norm") * norm(h, "query_norm")).sum(-1) / np.sqrt(d)
    g = sigmoid(np.sign(z) * np.sqrt(np.maximum(np.abs(z), 1e-6)))
    u = g[:, :, None] * (e @ w["value"].T)[:, None]
    x = norm(u, "conv_norm").reshape(t, -1)
    y = np.zeros_like(x)
    for i in range(t):
        for k in range(taps):
            at = i - (taps - 1 - k) * dilation
            if at >= 0:
                y[i] += w["conv"][:, k] * x[at]
    return u.reshape(t, -1) + silu(y)


def of_engram():
    ids, pad = [5, 7, 5, 2, 11, 7, 5], 2
    a, sizes = factors(13, 3, 1, 4), primes(10, 4, 4)
    print("factors", a, "sizes", sizes)
    for cut in (False, True):
        print("rows, cut", cut, rows_of(ids, pad, cut, a, sizes, 2))
    table = gen((sum(sizes), 2), 0.7, 0.1)
    e = np.array([table[row].reshape(-1) for row in rows_of(ids, pad, True, a, sizes, 2)])
    w = {
        "key": gen((6, 8), 0.6, 0.1), "value": gen((3, 8), 0.4, 0.5), "conv": gen((6, 2), 0.9, 0.1),
        **{name: 1 + 0.3 * gen((6,), 0.8, 0.1 * i) for i, name in enumerate(("key_norm", "query_norm", "conv_norm"))},
    }
    print("engram", np.round(engram(e, gen((7, 6), 0.5, 0.3), w, 2, 2, 3, 1e-6)[4:], 8).tolist())


# -- residual streams ------------------------------------------------------------------------


def of_streams():
    h = gen((2, 3), 0.7, 0.1)
    x = rms(h, 1e-6) * (1 + 0.3 * gen((6,), 0.8, 0.5)).reshape(2, 3)
    flat = x.reshape(-1)

    def mean(down, up):
        gate = sigmoid(up @ silu(down @ flat / 2)).reshape(2, 3)
        return (gate * x).mean(0)

    u = mean(gen((4, 6), 0.37, 0.2), gen((6, 4), 0.9, -0.4))
    weight = 1.5 * sigmoid(gen((2, 6), 0.5, 0.1) @ flat / 2)
    print("u", np.round(u, 8).tolist())
    print("H'", np.round(h + weight[:, None] * 10 * u, 8).tolist())
    print("leave", np.round(mean(gen((4, 6), 0.6, 0.3), gen((6, 4), 0.2, 0.7)), 8).tolist())


# -- pooled keys -----------------------------------------------------------------------------


def turned(x, positions):
    """The first two channels by the angle of the position, theta^0 = 1."""
    p = np.asarray(positions, float).reshape((len(x),) + (1,) * (x.ndim - 2))
    c, s, out = np.cos(p), np.sin(p), x.copy()
    out[..., 0], out[..., 1] = x[..., 0] * c - x[..., 1] * s, x[..., 0] * s + x[..., 1] * c
    return out


def of_pooled():
    t, size, top, heads, d = 8, 2, 2, 2, 4
    q = turned(gen((t, heads, d), 0.5, 0.3), range(t))
    raw = gen((t, d), 0.8, 0.2)
    k = turned(rms(raw.reshape(t // size, size, d).mean(1), 1e-6), range(0, t, size))
    scores = np.maximum(0, np.einsum("thd,bd->thb", q, k) / np.sqrt(d)).sum(1)
    main_q, main_k, v = gen((2, t, 4), 0.7, 0.1), gen((2, t, 4), 1.1, 0.4), gen((2, t, 2), 0.9, 0.2)
    logits = np.einsum("htd,hsd->hts", main_q, main_k) / 2
    for i in range(t):
        complete = (i + 1) // size
        chosen = sorted(sorted(range(complete), key=lambda b: (-scores[i, b], b))[:top])
        keys = [s for b in chosen for s in range(b * size, (b + 1) * size)] + list(range(complete * size, i + 1))
        out = softmax(logits[0, i, keys]) @ v[0, keys]
        p = softmax(logits[:, i, : i + 1]).mean(0)
        kl = []
        for blocks in (range(complete), chosen):
            mass = np.array([p[b * size : (b + 1) * size].sum() for b in blocks])
            mass = mass / mass.sum()
            kl.append(float((mass * np.log(mass / softmax(scores[i, list(blocks)]))).sum()) if len(mass) else 0.0)
        print(f"{i}: scores {np.round(scores[i, :complete], 8).tolist()} blocks {chosen} keys {keys} out {np.round(out, 8).tolist()} KL {kl[0]:.8f} chosen {kl[1]:.8f}")


def check():
    from transformers.models.qwen4_exp import modeling_qwen4_exp as theirs

    for vocab, ngram, index, seed in ((13, 3, 1, 4), (248320, 3, 2, 1234), (1, 5, 0, 0)):
        assert theirs._build_layer_multipliers(vocab, ngram, index, seed).tolist() == factors(vocab, ngram, index, seed)
    for least, first, count in ((10, 4, 4), (1, 0, 3), (200, 16, 16)):
        assert [theirs._find_nth_prime_after(least - 1, first + i + 1) for i in range(count)] == primes(least, first, count)
    print("the hash is that of transformers")


if __name__ == "__main__":
    of_engram()
    of_streams()
    of_pooled()
    if "--check" in sys.argv:
        check()
