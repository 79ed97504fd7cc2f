#!/usr/bin/env python3
"""A hundred dictionaries as torch.save writes them, and what torch.load(weights_only=True) reads.

Writes tests/golden/formats/torch_files.bin (the files, one after the other) and torch_files.json: of
each its place, and name, type, shape, bytes and CRC-32 of every tensor (contiguous, little-endian).
Names are made here from PyTorch's own result, by the rule that the header torch_file.h states. Keys of storages in the
form before archives are addresses, so that those bytes are others in every run.
"""
import io
import json
import pathlib
import random
import zlib
from collections import OrderedDict

import torch

SEED = 11
FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "formats"
HERE = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64",
        torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool",
        torch.complex64: "C64", torch.complex128: "C128", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
        torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64"}
KEYS = ["state_dict", "model_state_dict", "model", "module"]


def holds(value):
    if isinstance(value, torch.Tensor):
        return True
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else []
    return any(holds(one) for one in inner)


def weights(value):
    while True:
        inner = next((value[k] for k in KEYS if isinstance(value.get(k), dict) and holds(value[k])), None)
        if inner is None:
            holding = [one for one in value.values() if holds(one)]
            inner = holding[0] if len(holding) == 1 and isinstance(holding[0], dict) else None
        if inner is None:
            return value
        value = inner


def flat(value, name=""):
    if isinstance(value, torch.Tensor):
        yield name, value
        return
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else []
    for key, inner in pairs:
        yield from flat(inner, f"{name}.{key}" if name else str(key))


def content(tensor):
    plain = torch.empty(tensor.shape, dtype=tensor.dtype)
    plain.copy_(tensor.detach())
    raw = plain.flatten().view(torch.uint8) if tensor.numel() else torch.zeros(0, dtype=torch.uint8)
    data = raw.numpy().tobytes()
    return {"type": HERE[tensor.dtype], "shape": list(tensor.shape), "bytes": len(data), "crc32": zlib.crc32(data)}


def tensor(rng, dtype):
    """A few numbers in one of the layouts that state dictionaries have."""
    rank = rng.choice([0, 1, 1, 2, 2, 2, 3, 4])
    shape = [rng.choice([1, 2, 3, 5]) for _ in range(rank)]
    if rng.random() < 0.06 and rank:
        shape[rng.randrange(rank)] = 0
    count = 1
    for n in shape:
        count *= n
    if dtype in (torch.bool,):
        base = torch.tensor([rng.random() < 0.5 for _ in range(count)], dtype=dtype)
    elif dtype.is_floating_point or dtype.is_complex:
        base = torch.tensor([rng.uniform(-3, 3) for _ in range(count)], dtype=torch.float64)
        base = base.to(dtype)
    else:
        base = torch.tensor([rng.randrange(0, 100) for _ in range(count)], dtype=torch.int64).to(dtype)
    t = base.reshape(shape)
    layout = rng.choice(["plain", "plain", "turned", "cut", "step", "wide"])
    if layout == "turned" and rank >= 2:
        return t.transpose(0, rank - 1)
    if layout == "cut" and rank >= 1 and shape[0] > 1:
        return t[1:]
    if layout == "step" and rank >= 1 and shape[-1] > 1:
        return t[..., ::2]
    if layout == "wide" and rank >= 1 and count:
        return t.unsqueeze(0).expand(2, *t.shape)
    return t


def layers(rng, n, dtypes):
    made = OrderedDict()
    for i in range(n):
        for part in rng.sample(["weight", "bias", "gamma", "running_mean", "num_batches_tracked"], rng.randint(1, 3)):
            made[f"layers.{i}.{part}"] = tensor(rng, rng.choice(dtypes))
    return made


def dictionary(rng, i, legacy):
    # PyTorch reads no untyped storages of the older form
    typed = [t for t in HERE if HERE[t] not in ("F8_E4M3", "F8_E5M2", "U16", "U32", "U64")]
    dtypes = (typed if legacy else list(HERE)) if i % 4 == 0 else [torch.float32, torch.bfloat16, torch.float16, torch.int64]
    kind = i % 12
    inner = layers(rng, rng.randint(1, 3), dtypes)
    if kind == 0:
        return dict(inner)
    if kind == 1:  # a module's, with the versions that it keeps beside
        return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).state_dict()
    if kind == 2:  # Lightning
        return {"epoch": 3, "global_step": 17, "pytorch-lightning_version": "2.5.0", "loops": {"fit_loop": {"state": {}}},
                "callbacks": {"ModelCheckpoint{'monitor': None}": {"best": 0.25, "dirs": ["a", None]}},
                "state_dict": OrderedDict(("model." + k, v) for k, v in inner.items()),
                "optimizer_states": [{"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.ones(2)}}}],
                "lr_schedulers": [], "hparams_name": "kwargs", "hyper_parameters": {"lr": 1e-3}}
    if kind == 3:
        return {"model": {"module." + k: v for k, v in inner.items()}, "optimizer": {"state": {"x": torch.ones(1)}}, "step": 5}
    if kind == 4:
        return {"module": inner, "ds_version": "0.16", "lr": 0.1, "flag": True, "none": None, "size": torch.Size([2, 3]),
                "device": torch.device("cpu"), "dtype": torch.float32, "bytes": b"\x00\xff", "set": {1, 2}, "complex": 1 + 2j}
    if kind == 5:  # nested, with lists
        return {"encoder": {"a": inner, "list": [torch.ones(2), (torch.zeros(1), 7)]}, "decoder": {"b": {0: torch.arange(3)}}}
    if kind == 6:  # tied and shared
        table = torch.randn(4, 3)
        return {"embed.weight": table, "head.weight": table, "rows": table[1:3], "turned": table.t(), "turned_again": table.t()}
    if kind == 7:
        weight = torch.nn.Parameter(torch.randn(3, 2))
        noted = torch.nn.Parameter(torch.randn(2))
        noted.note = "an attribute of its own"
        return {"weight": weight, "plain": weight.detach(), "noted": noted, "frozen": torch.nn.Parameter(torch.ones(1), requires_grad=False)}
    if kind == 8:
        return {"anything": {"deeper": inner}, "epoch": 1}
    if kind == 9:  # numbers beyond 32 bits, and texts that are no ASCII
        return {"größe.重み": torch.randn(2), "big": 1 << 40, "huge": 1 << 100, "negative": -(1 << 40), **inner}
    if kind == 10:
        return {"model_state_dict": inner, "optimizer_state_dict": {"state": {}, "param_groups": [{"lr": 0.1, "params": [0]}]},
                "loss": 0.5, "rng_state": torch.arange(4, dtype=torch.uint8)}
    many = OrderedDict((f"w{k}", torch.full((1,), float(k))) for k in range(40))  # long memos
    return {"state_dict": many}


def main():
    rng = random.Random(SEED)
    torch.manual_seed(SEED)
    files, cases, at = [], [], 0
    for i in range(100):
        legacy = i % 3 == 2
        made = dictionary(rng, i, legacy)
        buffer = io.BytesIO()
        torch.serialization.set_crc32_options(i % 10 != 0)  # without, all checksums are 0
        torch.save(made, buffer, _use_new_zipfile_serialization=not legacy)
        data = buffer.getvalue()
        read = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        tensors = {name: content(t) for name, t in flat(weights(read))}
        cases.append({"case": f"{i}, {'legacy' if legacy else 'zip'}", "at": at, "bytes": len(data), "tensors": tensors})
        files.append(data)
        at += len(data)
    (FOLDER / "torch_files.bin").write_bytes(b"".join(files))
    about = {"case": "formats/torch_files", "reference": "torch.load(weights_only=True)", "version": torch.__version__.split("+")[0],
             "generator": "tools/golden/torch_files.py", "seed": SEED, "cases": cases}
    (FOLDER / "torch_files.json").write_text(json.dumps(about, ensure_ascii=False, separators=(",", ":")).replace(',{"case":', ',\n{"case":') + "\n")
    print(len(cases), "files,", at, "bytes")


if __name__ == "__main__":
    main()
