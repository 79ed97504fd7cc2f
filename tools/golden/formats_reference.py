#!/usr/bin/env python3
"""Writes tests/golden/formats: what the reference libraries write, and what they refuse.

    formats_reference.py           write the goldens
    formats_reference.py --check   compare what the installed libraries do with the goldens

Needs safetensors 0.8, gguf 0.19, numpy and torch. Read by golden_test.cpp of the format layer.
"""
import argparse
import importlib.metadata
import io
import json
import pathlib
import struct
import sys
import tempfile

import gguf
import numpy as np
import safetensors
import safetensors.torch
import torch

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/formats"


def story(reference, why, **more):
    return {"reference": reference, "version": importlib.metadata.version(reference),
            "generator": "tools/golden/formats_reference.py", "why": why, **more}


def dump(value):
    return (json.dumps(value, indent=1, ensure_ascii=True) + "\n").encode()


# ---- safetensors: verdicts

def tensor(dtype="F32", shape=(2,), data_offsets=(0, 8), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(data_offsets), **more}


def safetensors_file(header, size=8, length=None):
    """`header` as JSON value or as raw text, and `size` bytes of data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(size)


def safetensors_cases():
    def raw(tensor_text, **more):
        return safetensors_file(b'{"a":' + tensor_text + b"}", **more)

    big = 2**40
    return {
        "valid": safetensors_file({"a": tensor()}),
        "no tensors": safetensors_file({}, 0),
        "empty file": b"",
        "seven bytes": bytes(7),
        "header length 0": safetensors_file(b"", 0),
        "header length beyond the file": safetensors_file(b"{}", 0, length=3),
        "header length over 100 MB": safetensors_file(b"{}", 0, length=100_000_001),
        "header length 2^63": safetensors_file(b"{}", 0, length=2**63),
        "header length 2^64 - 1": safetensors_file(b"{}", 0, length=2**64 - 1),
        "header begins with a space": safetensors_file(b" {}", 0),
        "header ends with spaces": safetensors_file(b"{}   ", 0),
        "header ends with newlines": safetensors_file(b"{}\n\n", 0),
        "header ends with zero bytes": safetensors_file(b"{}\0\0", 0),
        "header has a zero byte, then text": safetensors_file(b'{}\0{"a":1}', 0),
        "header has a byte order mark": safetensors_file(b"\xef\xbb\xbf{}", 0),
        "header is an array": safetensors_file(b"[]", 0),
        "header is cut off": safetensors_file(b"{", 0),
        "header has a comment": safetensors_file(b"{}//x", 0),
        "header has a trailing comma": safetensors_file(b'{"__metadata__":{},}', 0),
        "header is not UTF-8": safetensors_file(b'{"\xff":1}', 0),
        "header is followed by text": safetensors_file(b"{}x", 0),
        "length of header not a multiple of 8": safetensors_file(b'{"__metadata__":{}}', 0),
        "tensor twice": safetensors_file(
            b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
            b'"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'),
        "key of a tensor twice": raw(
            b'{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}'),
        "unknown key of a tensor": safetensors_file({"a": tensor(x=1)}),
        "no dtype": raw(b'{"shape":[2],"data_offsets":[0,8]}'),
        "no shape": raw(b'{"dtype":"F32","data_offsets":[0,8]}'),
        "no data_offsets": raw(b'{"dtype":"F32","shape":[2]}'),
        "tensor is an array": safetensors_file({"a": ["F32", [2], [0, 8]]}),
        "tensor is null": raw(b"null", size=0),
        "tensor is a string": raw(b'"x"', size=0),
        "dtype is a number": raw(b'{"dtype":1,"shape":[2],"data_offsets":[0,8]}'),
        "dtype in lower case": safetensors_file({"a": tensor("f32")}),
        "dtype unknown": safetensors_file({"a": tensor("F31")}),
        "dtype empty": safetensors_file({"a": tensor("")}),
        "shape is a number": raw(b'{"dtype":"F32","shape":2,"data_offsets":[0,8]}'),
        "shape holds a fraction": safetensors_file({"a": tensor(shape=[2.0])}),
        "shape holds an exponent": raw(b'{"dtype":"F32","shape":[2e0],"data_offsets":[0,8]}'),
        "shape holds a string": safetensors_file({"a": tensor(shape=["2"])}),
        "shape holds an array": safetensors_file({"a": tensor(shape=[[2]])}),
        "shape holds null": safetensors_file({"a": tensor(shape=[None])}),
        "shape holds true": safetensors_file({"a": tensor(shape=[True])}, 4),
        "shape negative": safetensors_file({"a": tensor(shape=[-2])}),
        "shape of two negatives": safetensors_file({"a": tensor(shape=[-1, -2])}),
        "shape 2^64": safetensors_file({"a": tensor(shape=[2**64])}),
        "shape 2^63": safetensors_file({"a": tensor(shape=[2**63])}),
        "shape overflows": safetensors_file({"a": tensor(shape=[big, big])}),
        "shape overflows to the right size": safetensors_file({"a": tensor(shape=[2**62, 4, 2])}),
        "size in bytes overflows": safetensors_file({"a": tensor(shape=[2**62])}),
        "shape overflows before a zero": safetensors_file(
            {"a": tensor(shape=[big, big, 0], data_offsets=[0, 0])}, 0),
        "scalar": safetensors_file({"a": tensor(shape=[], data_offsets=[0, 4])}, 4),
        "no elements": safetensors_file({"a": tensor(shape=[0], data_offsets=[0, 0])}, 0),
        "no elements, at the end": safetensors_file(
            {"a": tensor(), "b": tensor(shape=[0], data_offsets=[8, 8])}),
        "no elements, inside another": safetensors_file(
            {"a": tensor(), "b": tensor(shape=[0], data_offsets=[4, 4])}),
        "no elements, beyond the end": safetensors_file(
            {"a": tensor(), "b": tensor(shape=[0], data_offsets=[9, 9])}),
        "one offset": safetensors_file({"a": tensor(data_offsets=[0])}),
        "three offsets": safetensors_file({"a": tensor(data_offsets=[0, 8, 8])}),
        "offsets run backwards": safetensors_file({"a": tensor(data_offsets=[8, 0])}),
        "offset negative": safetensors_file({"a": tensor(data_offsets=[-8, 0])}),
        "offset a fraction": safetensors_file({"a": tensor(data_offsets=[0.0, 8.0])}),
        "offset 2^64 - 1": safetensors_file({"a": tensor(data_offsets=[0, 2**64 - 1])}),
        "does not begin at 0": safetensors_file({"a": tensor(data_offsets=[4, 12])}, 12),
        "gap": safetensors_file({"a": tensor(), "b": tensor(data_offsets=[12, 20])}, 20),
        "overlap": safetensors_file({"a": tensor(), "b": tensor(data_offsets=[4, 12])}, 12),
        "same bytes twice": safetensors_file({"a": tensor(), "b": tensor()}),
        "size too small for shape": safetensors_file({"a": tensor(shape=[3])}),
        "size too large for shape": safetensors_file({"a": tensor(shape=[1])}),
        "data cut off": safetensors_file({"a": tensor()}, 7),
        "data beyond the last tensor": safetensors_file({"a": tensor()}, 9),
        "data without tensors": safetensors_file({}, 1),
        "tensors in another order than their bytes": safetensors_file(
            {"b": tensor(data_offsets=[8, 16]), "a": tensor()}, 16),
        "not aligned": safetensors_file(
            {"a": tensor("U8", [1], [0, 1]), "b": tensor("F64", [1], [1, 9])}, 9),
        "empty name": safetensors_file({"": tensor()}),
        "name with a line break": safetensors_file({"a\nb": tensor()}),
        "name with an escaped zero": safetensors_file({"a\0b": tensor()}),
        "name with half a surrogate pair": safetensors_file(
            b'{"\\ud800":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'),
        "metadata": safetensors_file({"__metadata__": {"k": "v"}, "a": tensor()}),
        "metadata null": safetensors_file({"__metadata__": None}, 0),
        "metadata an array": safetensors_file({"__metadata__": []}, 0),
        "metadata holds a number": safetensors_file({"__metadata__": {"k": 1}}, 0),
        "metadata holds an object": safetensors_file({"__metadata__": {"k": {}}}, 0),
        "metadata key twice": safetensors_file(b'{"__metadata__":{"k":"1","k":"2"}}', 0),
        "metadata twice": safetensors_file(b'{"__metadata__":{},"__metadata__":{}}', 0),
        "nested 200 deep": safetensors_file(
            b'{"__metadata__":' + b"[" * 200 + b"]" * 200 + b"}", 0),
        "F8_E4M3": safetensors_file({"a": tensor("F8_E4M3", [2], [0, 2])}, 2),
        "F4": safetensors_file({"a": tensor("F4", [2], [0, 1])}, 1),
        "F4, half a byte": safetensors_file({"a": tensor("F4", [1], [0, 0])}, 0),
        "F6_E2M3, not whole bytes": safetensors_file({"a": tensor("F6_E2M3", [3], [0, 2])}, 2),
        "U16": safetensors_file({"a": tensor("U16", [2], [0, 4])}, 4),
        "C64": safetensors_file({"a": tensor("C64", [2], [0, 16])}, 16),
    }


# What tessera refuses though the reference reads it, and why.
STRICTER = {
    "header begins with a space": "the format's description wants '{' first",
    "tensor twice": "two readers could see two files",
    "metadata key twice": "two readers could see two files",
    "unknown key of a tensor": "the format has three keys; another is a mistake or a trick",
    "tensor is an array": "an accident of the reference's JSON library, not in the format",
    "metadata null": "the format wants an object of strings",
}


def verdict(data):
    try:
        safetensors.deserialize(data)
        return "reads"
    except safetensors.SafetensorError as error:
        return str(error).removeprefix("Error while deserializing: ")


def make_cases():
    cases = []
    for name, data in safetensors_cases().items():
        case = {"case": name, "hex": data.hex(), "reference": verdict(data)}
        if name in STRICTER:
            assert case["reference"] == "reads", name
            case["stricter"] = STRICTER[name]
        cases.append(case)
    assert set(STRICTER) <= set(safetensors_cases())
    why = "every rule of the format broken once; reference: its error, or \"reads\""
    return dump({**story("safetensors", why), "cases": cases})


# ---- the same values through each reference writer

def ramp(n, dtype):
    """Numbers that every type holds exactly: 0 1 2 ... 100 0 1 ..."""
    return (torch.arange(n) % 101).to(dtype)


def make_safetensors():
    shapes = {torch.float64: [3], torch.float32: [2, 3], torch.float16: [5],
              torch.bfloat16: [1, 2, 2], torch.int64: [2], torch.int32: [], torch.int16: [0, 4],
              torch.int8: [7], torch.uint8: [3, 1], torch.bool: [2]}
    tensors = {f"x.{str(t).removeprefix('torch.')}": ramp(int(np.prod(s)), t).reshape(s)
               for t, s in shapes.items()}
    tensors["a second f32 \u00e9\t\""] = ramp(4, torch.float32)
    return safetensors.torch.save(tensors, {"spec": "{\"tessera\": 1}\n"})


def make_gguf():
    """Every value type, and a few tensor types, the quantised ones made by gguf's own quantiser."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "x.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_uint8("t.u8", 200)
        writer.add_int8("t.i8", -100)
        writer.add_uint16("t.u16", 60000)
        writer.add_int16("t.i16", -30000)
        writer.add_uint32("t.u32", 4000000000)
        writer.add_int32("t.i32", -2000000000)
        writer.add_float32("t.f32", 1.5)
        writer.add_bool("t.bool", True)
        writer.add_string("t.string", "h\u00e9llo")
        writer.add_uint64("t.u64", 2**64 - 1)
        writer.add_int64("t.i64", -2**63)
        writer.add_float64("t.f64", 0.1)
        writer.add_array("t.strings", ["a", "", "\u2581b"])
        writer.add_array("t.i32s", [1, -2, 3])
        writer.add_array("t.f32s", [0.5, -1.5])
        writer.add_array("t.bools", [True, False])
        writer.add_custom_alignment(64)
        values = ramp(512, torch.float32).numpy()
        writer.add_tensor("f32", values[:6].reshape(2, 3))
        writer.add_tensor("f16", values[:5].astype(np.float16))
        writer.add_tensor("i8", values[:3].astype(np.int8))
        writer.add_tensor("i64", values[:2].astype(np.int64))
        for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16"):
            number = gguf.GGMLQuantizationType[name]
            quantised = gguf.quantize(values[:128].reshape(2, 64), number)
            writer.add_tensor(name.lower(), quantised, raw_dtype=number)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


def make_split_gguf():
    """One model in three files of two tensors at most, as gguf's own writer cuts it."""
    with tempfile.TemporaryDirectory() as folder:
        writer = gguf.GGUFWriter(None, "llama", split_max_tensors=2)
        writer.add_string("t.string", "of the first part")
        values = ramp(64, torch.float32).numpy()
        for index, name in enumerate(("a", "b", "c", "d", "e")):
            writer.add_tensor(name, values[: index + 1])
        writer.write_header_to_file(pathlib.Path(folder) / "split.gguf")
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return {path.name: path.read_bytes() for path in sorted(pathlib.Path(folder).iterdir())}


def make_npy(array, version=None):
    out = io.BytesIO()
    np.lib.format.write_array(out, array, version)
    return out.getvalue()


def make_all():
    files = {"safetensors_cases.json": make_cases(), "mixed.safetensors": make_safetensors(),
             "mixed.gguf": make_gguf(),
             "f32_2x3.npy": make_npy(ramp(6, torch.float32).numpy().reshape(2, 3)),
             "i64_scalar.npy": make_npy(np.array(7, np.int64)),
             "bool_3.npy": make_npy(np.array([True, False, True])),
             "f16_0x4.npy": make_npy(np.zeros((0, 4), np.float16)),
             "f64_v2.npy": make_npy(np.array([0.1, -2.0]), (2, 0))}
    files |= make_split_gguf()
    files["README.json"] = dump({
        "files": {
            "mixed.safetensors": story("safetensors", "every type; values 0 1 2 ... 100 0 ..."),
            "mixed.gguf": story("gguf", "every metadata type, tensors of ten types"),
            "split-*.gguf": story("gguf", "one model in three files"),
            "*.npy": story("numpy", "numpy.lib.format.write_array; *_v2: version 2.0"),
            "safetensors_cases.json": "tells its own story"}})
    return files


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    FOLDER.mkdir(parents=True, exist_ok=True)
    wrong = []
    for name, data in make_all().items():
        if not check:
            (FOLDER / name).write_bytes(data)
        elif (FOLDER / name).read_bytes() != data:
            wrong.append(name)
    if wrong:
        sys.exit(f"differ from what the installed libraries write: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
