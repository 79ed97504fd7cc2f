"""Numbers of src/tessera/train/study/scaling_fit_test.cpp, in float64 with scipy.

Losses of 1.8 + 480 N^-.35 + 2000 D^-.37 at 5 x 4 sizes and tokens, as they are, and with noise of
.002 gen(20; .7, .1) in ln L and one run 5 % higher, where element n of gen(shape; a, b) is
sin(a n + b). L-BFGS-B of scipy from the full grid of starts of Hoffmann et al. 2022
(arXiv:2203.15556), gradient by hand; percentiles by numpy.
"""
import itertools

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp

DELTA = 1e-3


def gen(n, a, b):
    return np.sin(a * np.arange(n) + b)


def runs():
    n, d = np.meshgrid([1e6, 3e6, 10e6, 30e6, 100e6], [.02e9, .1e9, .5e9, 2.5e9], indexing="ij")
    n, d = n.ravel(), d.ravel()
    return n, d, 1.8 + 480 * n**-.35 + 2000 * d**-.37


def objective(x, n, d, loss):
    a, b, e, alpha, beta = x
    terms = np.stack([a - alpha * np.log(n), b - beta * np.log(d), np.full_like(n, e)])
    total = logsumexp(terms, axis=0)
    share = np.exp(terms - total)
    rest = total - np.log(loss)
    inner = np.abs(rest) <= DELTA
    value = np.where(inner, rest**2 / 2, DELTA * (np.abs(rest) - DELTA / 2)).sum()
    slope = np.where(inner, rest, DELTA * np.sign(rest))
    gradient = [(slope * share[0]).sum(), (slope * share[1]).sum(), (slope * share[2]).sum(),
                -(slope * share[0] * np.log(n)).sum(), -(slope * share[1] * np.log(d)).sum()]
    return value, np.array(gradient)


def fit(n, d, loss):
    best = None
    for start in itertools.product((0, 10, 20), (0, 10, 20), (-1, 0, 1), (0, .5, 1), (0, .5, 1)):
        found = minimize(objective, start, (n, d, loss), "L-BFGS-B", jac=True,
                         options={"ftol": 1e-18, "gtol": 1e-14, "maxiter": 5000, "maxfun": 20000})
        if best is None or found.fun < best.fun:
            best = found
    a, b, e, alpha, beta = best.x
    return best.fun, np.exp(e), np.exp(a), np.exp(b), alpha, beta


def optimum(a, b, alpha, beta, flops):
    g = (alpha * a / (beta * b)) ** (1 / (alpha + beta))
    return g * (flops / 6) ** (beta / (alpha + beta))


if __name__ == "__main__":
    n, d, loss = runs()
    print("planted:", *(f"{v:.8g}" for v in fit(n, d, loss)))
    noisy = loss * np.exp(.002 * gen(20, .7, .1))
    noisy[7] *= 1.05
    print("noisy: ", *(f"{v:.8g}" for v in fit(n, d, noisy)))
    print("at the truth:", f"{objective([np.log(480), np.log(2000), np.log(1.8), .35, .37], n, d, noisy)[0]:.8g}")
    print("optimum:", f"{optimum(480, 2000, .35, .37, 1e18):.8g}",
          f"{optimum(406.4, 410.7, .34, .28, 5.76e23):.4g}",
          f"{optimum(482.01, 2085.43, .3478, .3658, 5.76e23):.4g}")
    print("percentiles of 1, 2, 3:", *np.percentile([3, 1, 2], [2.5, 97.5]))
