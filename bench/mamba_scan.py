"""The selective scan of libtessera_ops.so beside the one that transformers falls back to, in turn in one process.

    GLIBC_TUNABLES=glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=2147483647 \\
        python bench/mamba_scan.py build/release/lib/libtessera_ops.so [REPEATS]

Both get the threads, and with these settings the allocator, that tessera has: without them most of the peer's time goes
into pages that it gives back and takes again.
"""
import sys

import torch
from transformers.models.mamba.modeling_mamba import mamba_selective_scan

import turns

E, N, T, RANK = 1536, 16, 512, 48


@torch.no_grad()
def main():
    torch.ops.load_library(sys.argv[1])
    torch.manual_seed(1)
    a = -torch.arange(1.0, N + 1).expand(E, N).contiguous()
    bias, d = torch.randn(E) / 10, torch.ones(E)
    # as MambaMixer has them: channels before time, B and C parts of one projection's rows
    x, dt = torch.randn(1, E, T), torch.randn(1, E, T) - 2
    b, c = torch.randn(1, T, RANK + 2 * N).split([RANK, N, N], dim=-1)[1:]
    # as the op has them: time before channels
    rows = [t.transpose(1, 2).contiguous() for t in (x, dt)] + [bias, a, b.contiguous(), c.contiguous(), d]

    def ours():
        return torch.ops.tessera.selective_scan(*rows, 64)

    def theirs():
        return mamba_selective_scan(x, dt, a, b.transpose(1, 2), c.transpose(1, 2), D=d, delta_bias=bias,
                                    delta_softplus=True)

    torch.testing.assert_close(ours().transpose(1, 2), theirs(), rtol=1e-4, atol=1e-4)
    turns.compare("mamba1/scan/python", ours, "transformers", theirs, turns.repeats(2), torch.get_num_threads(), aim=20)


main()
