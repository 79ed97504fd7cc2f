"""Numbers of src/tessera/train/optimizer/*_test.cpp, in float64.

On W = gen(2,3; 0.5, 0.1) and G_t = gen(2,3; 0.7, t), where element n of gen(shape; a, b) is
sin(a n + b). schedule_free: the package schedulefree. int8: the table and the rounding of
bitsandbytes, AdamW's formula around them. soap, shampoo: the formulas of their papers and of the
authors' programs, written down here in numpy; soap with G_t = gen(2,3; 0.7 t, t).
"""
import numpy as np
import torch


def gen(shape, a, b):
    return np.sin(a * np.arange(int(np.prod(shape))) + b).reshape(shape)


def show(name, values):
    print(name, ", ".join(f"{v:.8f}" for v in np.asarray(values).reshape(-1)))


def schedule_free():
    import schedulefree
    w = torch.nn.Parameter(torch.tensor(gen((2, 3), 0.5, 0.1)))
    o = schedulefree.AdamWScheduleFree([w], lr=0.01, betas=(0.9, 0.95), weight_decay=0.1, foreach=False)
    o.train()
    for t in (1, 2, 3):
        w.grad = torch.tensor(gen((2, 3), 0.7, t))
        o.step()
    show("schedule_free y", w.detach())
    o.eval()
    show("schedule_free x", w.detach())


def soap(steps=5, every=2, lr=0.01, b1=0.9, b2=0.95, eps=1e-8, wd=0.1):
    w = gen((2, 3), 0.5, 0.1)
    L, R = np.zeros((2, 2)), np.zeros((3, 3))
    m = v = np.zeros((2, 3))
    QL = QR = None
    for t in range(1, steps + 1):
        g = gen((2, 3), 0.7 * t, t)  # of one frequency they would leave a direction out
        if t == 1:
            L, R = (1 - b2) * g @ g.T, (1 - b2) * g.T @ g
            QL, QR = (np.linalg.eigh(x)[1][:, ::-1] for x in (L, R))
            continue
        n = t - 1
        seen = QL.T @ g @ QR
        m, v = b1 * m + (1 - b1) * seen, b2 * v + (1 - b2) * seen ** 2
        step = QL @ (m / (np.sqrt(v) + eps)) @ QR.T
        w = w * (1 - lr * wd) - lr * np.sqrt(1 - b2 ** n) / (1 - b1 ** n) * step
        L, R = b2 * L + (1 - b2) * g @ g.T, b2 * R + (1 - b2) * g.T @ g
        if n % every == 0:
            back = QL @ m @ QR.T
            order = np.argsort(-np.diag(QL.T @ L @ QL))
            QL, v = np.linalg.qr(L @ QL[:, order])[0], v[order]
            order = np.argsort(-np.diag(QR.T @ R @ QR))
            QR, v = np.linalg.qr(R @ QR[:, order])[0], v[:, order]
            m = QL.T @ back @ QR
    show("soap", w)


def shampoo(graft, steps=3, every=2, lr=0.01, b1=0.9, b2=0.95, eps=1e-8, wd=0.1, root_eps=1e-6):
    w = gen((2, 3), 0.5, 0.1)
    L, R = np.zeros((2, 2)), np.zeros((3, 3))
    m = v = np.zeros((2, 3))

    def root(x):
        values, vectors = np.linalg.eigh(x)
        return vectors @ np.diag((np.maximum(values, 0) + root_eps * values[-1]) ** -0.25) @ vectors.T

    for t in range(1, steps + 1):
        g = gen((2, 3), 0.7, t)
        L, R = b2 * L + (1 - b2) * g @ g.T, b2 * R + (1 - b2) * g.T @ g
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g ** 2
        if (t - 1) % every == 0:
            left, right = root(L / (1 - b2 ** t)), root(R / (1 - b2 ** t))
        step = left @ (m / (1 - b1 ** t)) @ right
        if graft:
            adam = m / (1 - b1 ** t) / (np.sqrt(v / (1 - b2 ** t)) + eps)
            step = step * np.linalg.norm(adam) / np.linalg.norm(step)
        w = w * (1 - lr * wd) - lr * step
    show(f"shampoo graft {graft}", w)


def int8():
    """4096 elements, three updates; the first six weights and sums."""
    import bitsandbytes.functional as F
    n, lr, b1, b2, eps, wd = 4096, 0.01, 0.9, 0.95, 1e-8, 0.1
    signed, unsigned = F.create_dynamic_map(signed=True), F.create_dynamic_map(signed=False)
    w = gen((n,), 0.5, 0.1)
    kept = [None, None]

    def packed(x, code):
        q, state = F.quantize_blockwise(torch.tensor(x, dtype=torch.float32), code=code, blocksize=256)
        return q, F.dequantize_blockwise(q, state).double().numpy()

    m = v = np.zeros(n)
    for t in (1, 2, 3):
        g = gen((n,), 0.7, t)
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        w = w * (1 - lr * wd) - lr / (1 - b1 ** t) * m / (np.sqrt(v) / np.sqrt(1 - b2 ** t) + eps)
        kept[0], m = packed(m, signed)
        kept[1], v = packed(v, unsigned)
    show("int8 first six", w[:6])
    show("int8 sum, sum of squares", [w.sum(), (w * w).sum()])
    for name, code in (("signed", signed), ("unsigned", unsigned)):
        show(f"{name} table at 0, 1, 100, 129, 200, 254", code[[0, 1, 100, 129, 200, 254]].numpy())
        show(f"{name} sum of the table", [code.double().sum().item()])


def adam(coupled, wd, factor, scale=0.5, lr=0.01, b1=0.9, b2=0.95, eps=1e-3):
    """A parameter of a group: its decay, its factor on the rate, gradients that are clipped."""
    w = gen((6,), 0.5, 0.1)
    m = v = np.zeros(6)
    lr = lr * factor
    for t in (1, 2, 3):
        g = scale * gen((6,), 0.7, t) + (wd * w if coupled else 0)
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        w = w * (1 if coupled else 1 - lr * wd) - lr / (1 - b1 ** t) * m / (np.sqrt(v) / np.sqrt(1 - b2 ** t) + eps)
    show(f"adam coupled {coupled} decay {wd} factor {factor}", w)


schedule_free()
soap()
shampoo(True)
shampoo(False)
int8()
for coupled in (False, True):
    for wd, factor in ((0.1, 1), (0, 1), (0.1, 0.3)):
        adam(coupled, wd, factor)
