"""Tiny RWKV 4 to 7 as RWKV's own programs save them, and what these compute.

    python tools/golden/rwkv_pth.py tests/golden/rwkv_pth

A file VERSION.pth (torch.save of names and tensors, in float32) and VERSION.safetensors with input_ids [19], logits [19, C],
greedy_prompt [5] and greedy_ids [16]. The reference is plain torch, token by token in float64, after BlinkDL/RWKV-LM
(rwkv_v6_demo.py, rwkv_v7_demo_rnn.py) and the package rwkv (versions 4 and 5).
"""

import math
import pathlib
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import reference

C, D, HEADS, HIDDEN, LAYERS, MIX, DECAY = 40, 16, 2, 24, 2, 3, 5
VERSIONS = ("4", "5.0", "5.2", "6", "7")


def shapes(version):
    """{name: shape} of a file; versions 5.0 and 5.2 differ in the gate and in what decays."""
    names = {"emb.weight": (C, D), "head.weight": (C, D), "ln_out.weight": (D,), "ln_out.bias": (D,)}
    k = D // HEADS
    for i in range(LAYERS):
        at = f"blocks.{i}."
        for norm in (["ln0"] if i == 0 else []) + ["ln1", "ln2"] + ([] if version == "4" else ["att.ln_x"]):
            names |= {f"{at}{norm}.weight": (D,), f"{at}{norm}.bias": (D,)}
        matrices = ["receptance", "key", "value", "output"] + (["gate"] if version in ("5.2", "6") else [])
        names |= {f"{at}att.{n}.weight": (D, D) for n in matrices}
        names |= {f"{at}ffn.key.weight": (HIDDEN, D), f"{at}ffn.value.weight": (D, HIDDEN)}
        one = (1, 1, D)
        if version != "7":
            names[f"{at}ffn.receptance.weight"] = (D, D)
        if version in ("4", "5.0", "5.2"):
            names |= {f"{at}att.time_mix_{n}": one for n in ("kvrg" if version == "5.2" else "kvr")}
            names |= {f"{at}ffn.time_mix_{n}": one for n in "kr"}
            shape = {"4": (D,), "5.0": (HEADS,), "5.2": (HEADS, k)}[version]
            names |= {f"{at}att.time_decay": shape, f"{at}att.{'time_faaaa' if version == '5.2' else 'time_first'}": shape}
        if version == "6":
            names |= {f"{at}att.time_maa_{n}": one for n in "xwkvrg"} | {f"{at}ffn.time_maa_{n}": one for n in "kr"}
            names |= {f"{at}att.time_maa_w1": (D, 5 * MIX), f"{at}att.time_maa_w2": (5, MIX, D), f"{at}att.time_decay": one,
                      f"{at}att.time_decay_w1": (D, DECAY), f"{at}att.time_decay_w2": (DECAY, D), f"{at}att.time_faaaa": (HEADS, k)}
        if version == "7":
            names |= {f"{at}att.x_{n}": one for n in "rwkvag"} | {f"{at}att.{n}": one for n in ("w0", "a0", "v0", "k_k", "k_a")}
            for n, rank in (("w", DECAY), ("a", 6), ("v", 4), ("g", 7)):
                names |= {f"{at}att.{n}1": (D, rank), f"{at}att.{n}2": (rank, D)}
            names |= {f"{at}att.r_k": (HEADS, k), f"{at}ffn.x_k": one}
    return names


def heads(x):
    return x.view(HEADS, -1)


def norm(w, name, x):
    return F.layer_norm(x, (D,), w[name + ".weight"], w[name + ".bias"], 1e-5)


def head_norm(w, at, x):
    """RWKV's own code divides by 8 before a norm with 1e-5."""
    return F.group_norm(x.view(1, D) / 8, HEADS, w[at + "ln_x.weight"], w[at + "ln_x.bias"], 1e-5).view(D)


class Rwkv:
    """One row, token by token."""

    def __init__(self, version, tensors):
        self.version, self.w = version[0], {name: value.double() for name, value in tensors.items()}
        for name, value in self.w.items():
            if value.shape[:2] == (1, 1):
                self.w[name] = value.view(-1)
        self.state = [{} for _ in range(LAYERS)]
        self.first = None

    def step(self, token):
        w = self.w
        x = norm(w, "blocks.0.ln0", w["emb.weight"][token])
        for i, state in enumerate(self.state):
            at = f"blocks.{i}."
            x = x + getattr(self, f"mix{self.version}")(norm(w, at + "ln1", x), at + "att.", state, i)
            x = x + self.channel(norm(w, at + "ln2", x), at + "ffn.", state)
        return w["head.weight"] @ norm(w, "ln_out", x)

    def back(self, state, name, x):
        before = state.get(name, torch.zeros_like(x))
        state[name] = x
        return before

    def channel(self, x, at, state):
        w, before = self.w, self.back(state, "ffn", x)
        if self.version == "7":
            return w[at + "value.weight"] @ torch.relu(w[at + "key.weight"] @ (x + (before - x) * w[at + "x_k"])) ** 2
        if self.version == "6":
            k, r = (x + (before - x) * w[f"{at}time_maa_{n}"] for n in "kr")
        else:
            k, r = (x * w[f"{at}time_mix_{n}"] + before * (1 - w[f"{at}time_mix_{n}"]) for n in "kr")
        return torch.sigmoid(w[at + "receptance.weight"] @ r) * (w[at + "value.weight"] @ torch.relu(w[at + "key.weight"] @ k) ** 2)

    def mixed(self, x, before, at, names):
        return [x * self.w[f"{at}time_mix_{n}"] + before * (1 - self.w[f"{at}time_mix_{n}"]) for n in names]

    def mix4(self, x, at, state, layer):
        w, before = self.w, self.back(state, "att", x)
        k, v, r = self.mixed(x, before, at, "kvr")
        k, v = w[at + "key.weight"] @ k, w[at + "value.weight"] @ v
        sums = state.setdefault("sums", [torch.zeros(D).double(), torch.zeros(D).double()])
        now = torch.exp(w[at + "time_first"] + k)
        y = (sums[0] + now * v) / (sums[1] + now)
        fade = torch.exp(-torch.exp(w[at + "time_decay"]))
        state["sums"] = [fade * sums[0] + torch.exp(k) * v, fade * sums[1] + torch.exp(k)]
        return w[at + "output.weight"] @ (torch.sigmoid(w[at + "receptance.weight"] @ r) * y)

    def read(self, state, r, k, v, decay, bonus):
        """State [H, K, V]: what r reads of it, with the bonus of the present; then it fades."""
        r, k, v = heads(r), heads(k), heads(v)
        s = state.get("s", torch.zeros(HEADS, D // HEADS, D // HEADS).double())
        now = k[:, :, None] * v[:, None]
        state["s"] = decay[..., None] * s + now
        return torch.einsum("hkv,hk->hv", s + bonus[..., None] * now, r).reshape(D)

    def mix5(self, x, at, state, layer):
        w, before = self.w, self.back(state, "att", x)
        gated = at + "gate.weight" in w
        k, v, r, *g = self.mixed(x, before, at, "kvrg" if gated else "kvr")
        decay = torch.exp(-torch.exp(w[at + "time_decay"])).view(HEADS, -1).expand(HEADS, D // HEADS)
        # under the older name stands the logarithm
        bonus = w[at + "time_faaaa"] if at + "time_faaaa" in w else torch.exp(w[at + "time_first"])
        bonus = bonus.view(HEADS, -1).expand(HEADS, D // HEADS)
        y = head_norm(w, at, self.read(state, w[at + "receptance.weight"] @ r, w[at + "key.weight"] @ k, w[at + "value.weight"] @ v, decay, bonus))
        return w[at + "output.weight"] @ (y * F.silu(w[at + "gate.weight"] @ g[0]) if gated else y)

    def mix6(self, x, at, state, layer):
        w, step = self.w, self.back(state, "att", x) - x
        low = torch.tanh((x + step * w[at + "time_maa_x"]) @ w[at + "time_maa_w1"]).view(5, MIX)
        moved = {n: x + step * (w[f"{at}time_maa_{n}"] + low[j] @ w[at + "time_maa_w2"][j]) for j, n in enumerate("wkvrg")}
        decay = w[at + "time_decay"] + torch.tanh(moved["w"] @ w[at + "time_decay_w1"]) @ w[at + "time_decay_w2"]
        r, k, v = (w[f"{at}{n}.weight"] @ moved[n[0]] for n in ("receptance", "key", "value"))
        y = head_norm(w, at, self.read(state, r, k, v, heads(torch.exp(-torch.exp(decay))), w[at + "time_faaaa"]))
        return w[at + "output.weight"] @ (y * F.silu(w[at + "gate.weight"] @ moved["g"]))

    def mix7(self, x, at, state, layer):
        w, step = self.w, self.back(state, "att", x) - x
        moved = {n: x + step * w[f"{at}x_{n}"] for n in "rwkvag"}
        r, k, v = (w[f"{at}{n}.weight"] @ moved[n[0]] for n in ("receptance", "key", "value"))
        decay = torch.exp(-math.exp(-0.5) * torch.sigmoid(w[at + "w0"] + torch.tanh(moved["w"] @ w[at + "w1"]) @ w[at + "w2"]))
        rate = torch.sigmoid(w[at + "a0"] + (moved["a"] @ w[at + "a1"]) @ w[at + "a2"])
        gate = torch.sigmoid(moved["g"] @ w[at + "g1"]) @ w[at + "g2"]
        removed = F.normalize(heads(k * w[at + "k_k"]), dim=-1)
        k = k * (1 + (rate - 1) * w[at + "k_a"])
        if layer == 0:
            self.first = v
        else:
            v = v + (self.first - v) * torch.sigmoid(w[at + "v0"] + (moved["v"] @ w[at + "v1"]) @ w[at + "v2"])
        s = state.get("s", torch.zeros(HEADS, D // HEADS, D // HEADS).double())
        held = torch.einsum("hkv,hk->hv", s, removed)
        s = heads(decay)[..., None] * s - (heads(rate) * removed)[..., None] * held[:, None] + heads(k)[..., None] * heads(v)[:, None]
        state["s"] = s
        y = head_norm(w, at, torch.einsum("hkv,hk->hv", s, heads(r)).reshape(D))
        y = y + ((heads(r) * heads(k) * w[at + "r_k"]).sum(-1, keepdim=True) * heads(v)).view(D)
        return w[at + "output.weight"] @ (y * gate)


def logits(version, tensors, ids):
    model = Rwkv(version, tensors)
    return torch.stack([model.step(token) for token in ids])


def greedy(version, tensors):
    """A drawn prompt whose continuation is varied and without near ties."""
    for attempt in range(100):
        ids = reference.generator(version, "prompt", attempt).integers(0, C, 5).tolist()
        prompt, least = list(ids), math.inf
        for _ in range(16):
            best = logits(version, tensors, ids)[-1].topk(2)
            least = min(least, float(best.values[0] - best.values[1]))
            ids.append(int(best.indices[0]))
        if len(set(ids[5:])) >= 6 and least > 0.02:
            return prompt, ids[5:]
    raise RuntimeError(f"{version}: no varied text")


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for version in VERSIONS:
        tensors = {name: reference.draw(f"rwkv{version}", name.replace("ln", "norm"), shape, False) for name, shape in shapes(version).items()}
        for name, value in tensors.items():
            if "time_mix" in name or "time_maa_" in name and value.dim() == 3 and "w2" not in name or ".x_" in name:
                tensors[name] = torch.from_numpy(reference.generator(version, name).random(tuple(value.shape)).astype("float32"))
            elif name.endswith(("time_decay", "time_first", "time_faaaa", "k_k", "r_k")):
                tensors[name] = 3 * value
        torch.save(tensors, folder / f"rwkv{version}.pth")
        ids = reference.generator(version, "ids").integers(0, C, 19).tolist()
        prompt, text = greedy(version, tensors)
        save_file({"input_ids": torch.tensor(ids), "logits": logits(version, tensors, ids).float(), "greedy_prompt": torch.tensor(prompt), "greedy_ids": torch.tensor(text)},
                  folder / f"rwkv{version}.safetensors")
        print(version, text)


if __name__ == "__main__":
    main()
