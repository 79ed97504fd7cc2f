"""The peer of train_step.cpp: the same model and step in eager PyTorch, at its best documented settings."""
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

V, D, L, H, T, B = 256, 768, 4, 12, 256, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        q, k, v = (t.view(B, T, H, D // H).transpose(1, 2) for t in self.qkv(self.ln1(x)).split(D, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, D)
        x = x + self.proj(y)
        return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.position = nn.Embedding(V, D), nn.Embedding(T, D)
        self.blocks = nn.ModuleList(Block() for _ in range(L))
        self.norm = nn.LayerNorm(D)

    def forward(self, ids):
        x = self.token(ids) + self.position(torch.arange(T))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token.weight)


def main():
    warmup, steps = 2, int(sys.argv[1]) if len(sys.argv) > 1 else 5
    torch.manual_seed(1)
    model = Gpt()
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
                                  lr=1e-3, betas=(0.9, 0.95), fused=True)
    data = torch.randint(V, (1 << 20,))
    seconds = []
    for step in range(warmup + steps):
        begin = time.perf_counter()
        at = torch.randint(len(data) - T - 1, (B,))
        ids = torch.stack([data[i:i + T] for i in at])
        targets = torch.stack([data[i + 1:i + T + 1] for i in at])
        loss = F.cross_entropy(model(ids).view(-1, V), targets.view(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        loss.item()
        if step >= warmup:
            seconds.append(time.perf_counter() - begin)
    print(f"{statistics.median(seconds):.4f}")


main()
