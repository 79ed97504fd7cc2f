"""Mamba-2's scan of libtessera_ops.so beside ggml's, in turn in one process.

    pip install llama-cpp-python   # builds ggml for this machine; its libraries lie in llama_cpp/lib
    python bench/ssd_ggml.py build/release/lib/libtessera_ops.so .../llama_cpp/lib [REPEATS]

ggml's op is called as its models call it, in a graph of one node. Both get two threads, the same numbers, and
must agree. The ratio of times is that of times per state element: both update the same ones.
"""
import ctypes
import sys
from pathlib import Path

import torch

import turns

T, HEADS, WIDTH, STATE, THREADS = 2048, 8, 64, 128, 2


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


class Ggml:
    F32, I32 = 0, 26

    def __init__(self, folder):
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
        self.context = self.base.ggml_init(InitParams(256 << 20, None, False))

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


@torch.no_grad()
def main():
    torch.ops.load_library(sys.argv[1])
    torch.set_num_threads(THREADS)
    torch.manual_seed(1)
    x, raw = torch.randn(1, T, HEADS, WIDTH), torch.randn(1, T, HEADS) - 2
    dt, a = torch.nn.functional.softplus(raw), -torch.arange(1.0, HEADS + 1)
    b, c = torch.randn(1, T, 1, STATE) / 8, torch.randn(1, T, 1, STATE) / 8
    none = torch.zeros(HEADS)

    ggml = Ggml(sys.argv[2])
    scan = ggml.base.ggml_ssm_scan(
        ggml.context,
        ggml.tensor(torch.zeros(HEADS * WIDTH * STATE), STATE, WIDTH, HEADS, 1),
        ggml.tensor(x, WIDTH, HEADS, T, 1),
        ggml.tensor(raw, HEADS, T, 1),  # its op takes the softplus
        ggml.tensor(a, 1, HEADS),
        ggml.tensor(b, STATE, 1, T, 1),
        ggml.tensor(c, STATE, 1, T, 1),
        ggml.tensor(torch.zeros(1, dtype=torch.int32), 1),
        1,
    )
    graph = ggml.graph(scan)

    def ours():
        return torch.ops.tessera.ssd(x, dt, a, b, c, none, 64)

    ggml.compute(graph)
    numbers = (ctypes.c_float * (T * HEADS * WIDTH)).from_address(ggml.base.ggml_get_data(scan))
    theirs = torch.frombuffer(numbers, dtype=torch.float32).reshape(1, T, HEADS, WIDTH)
    torch.testing.assert_close(ours(), theirs, rtol=1e-3, atol=1e-3)
    turns.compare("mamba2/ggml", ours, "ggml", lambda: ggml.compute(graph), turns.repeats(3), THREADS, aim=5,
                  elements=T * HEADS * WIDTH * STATE)


main()
