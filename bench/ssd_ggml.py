"""Mamba-2's scan of libtessera_ops.so beside ggml's, in turn in one process.

    pip install llama-cpp-python   # builds ggml for this machine; its libraries lie in llama_cpp/lib
    GLIBC_TUNABLES=glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=2147483647 \\
        python bench/ssd_ggml.py build/release/lib/libtessera_ops.so .../llama_cpp/lib [REPEATS]

ggml's op is called as its models call it, in a graph of one node: with the heads of recurrences_rows, and with the two
prompts that ggml's own bench op has, each and both together. Both get two threads, the same numbers, and must agree; ours gets the
allocator that tessera has, ggml's memory is all taken beforehand. The ratio of times is that of times per state
element: both update the same ones.
"""
import ctypes
import sys
from pathlib import Path

import torch

import turns

STATE, THREADS, AIM = 128, 2, 5
ROWS = {"mamba2/ggml": (2048, 8, 64)}
PROMPTS = {"mamba2/ggml/48x64": (512, 48, 64), "mamba2/ggml/128x80": (512, 128, 80)}  # of ggml's bench op


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


class Ggml:
    F32, I32 = 0, 26

    def __init__(self, folder, memory):
        def library(name):
            return ctypes.CDLL(str(next(p for p in Path(folder).rglob(f"lib{name}.so*"))), mode=ctypes.RTLD_GLOBAL)

        self.base, self.cpu = library("ggml-base"), library("ggml-cpu")
        pointer = ctypes.c_void_p
        for lib, name, result, arguments in (
            (self.base, "ggml_init", pointer, [InitParams]),
            (self.base, "ggml_new_tensor", pointer, [pointer, ctypes.c_int, ctypes.c_int, pointer]),
            (self.base, "ggml_get_data", pointer, [pointer]),
            (self.base, "ggml_ssm_scan", pointer, [pointer] * 8 + [ctypes.c_int64]),
            (self.base, "ggml_new_graph", pointer, [pointer]),
            (self.base, "ggml_build_forward_expand", None, [pointer, pointer]),
            (self.cpu, "ggml_graph_compute_with_ctx", ctypes.c_int, [pointer, pointer, ctypes.c_int]),
        ):
            call = getattr(lib, name)
            call.restype, call.argtypes = result, arguments
        self.cpu.ggml_cpu_init()
        self.context = self.base.ggml_init(InitParams(memory, None, False))

    def tensor(self, values, *sizes):
        """A copy of `values`; sizes as ggml has them, the fastest axis first."""
        kind = self.I32 if values.dtype == torch.int32 else self.F32
        shape = (ctypes.c_int64 * len(sizes))(*sizes)
        out = self.base.ggml_new_tensor(self.context, kind, len(sizes), shape)
        values = values.contiguous()
        ctypes.memmove(self.base.ggml_get_data(out), values.data_ptr(), values.numel() * 4)
        return out

    def graph(self, node):
        out = self.base.ggml_new_graph(self.context)
        self.base.ggml_build_forward_expand(out, node)
        return out

    def compute(self, graph):
        if self.cpu.ggml_graph_compute_with_ctx(self.context, graph, THREADS) != 0:
            sys.exit("ggml_graph_compute_with_ctx failed")


def row(name, length, heads, width):
    x, raw = torch.randn(1, length, heads, width), torch.randn(1, length, heads) - 2
    dt, a = torch.nn.functional.softplus(raw), -torch.arange(1.0, heads + 1)
    b, c = torch.randn(1, length, 1, STATE) / 8, torch.randn(1, length, 1, STATE) / 8
    none = torch.zeros(heads)

    # x and y, and the state twice; the rest is small
    ggml = Ggml(sys.argv[2], 4 * (2 * x.numel() + 2 * heads * width * STATE) + (64 << 20))
    scan = ggml.base.ggml_ssm_scan(
        ggml.context,
        ggml.tensor(torch.zeros(heads * width * STATE), STATE, width, heads, 1),
        ggml.tensor(x, width, heads, length, 1),
        ggml.tensor(raw, heads, length, 1),  # its op takes the softplus
        ggml.tensor(a, 1, heads),
        ggml.tensor(b, STATE, 1, length, 1),
        ggml.tensor(c, STATE, 1, length, 1),
        ggml.tensor(torch.zeros(1, dtype=torch.int32), 1),
        1,
    )
    graph = ggml.graph(scan)

    def ours():
        return torch.ops.tessera.ssd(x, dt, a, b, c, none, 64)

    ggml.compute(graph)
    numbers = (ctypes.c_float * x.numel()).from_address(ggml.base.ggml_get_data(scan))
    theirs = torch.frombuffer(numbers, dtype=torch.float32).reshape(x.shape)
    torch.testing.assert_close(ours(), theirs, rtol=1e-3, atol=1e-3)
    elements = x.numel() * STATE
    seconds = turns.compare(name, ours, "ggml", lambda: ggml.compute(graph), turns.repeats(3), THREADS, AIM, elements)
    return *seconds, elements


@torch.no_grad()
def main():
    torch.ops.load_library(sys.argv[1])
    torch.set_num_threads(THREADS)
    torch.manual_seed(1)
    for name, shape in ROWS.items():
        row(name, *shape)
    mine, other, elements = map(sum, zip(*(row(name, *shape) for name, shape in PROMPTS.items())))
    turns.report("mamba2/ggml/prompts", mine, "ggml", other, turns.repeats(3), THREADS, AIM, elements)


main()
