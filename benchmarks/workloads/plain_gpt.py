"""A small GPT on made-up text, as many write it: float32, AdamW, a DataLoader without workers, DDP.

It does not know the advisor. Two ranks on one card are two nodes for NCCL, which refuses them otherwise.
"""

import argparse
import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--width", type=int, default=768)
parser.add_argument("--layers", type=int, default=6)
parser.add_argument("--length", type=int, default=512)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--steps", type=int, default=1_000_000)
asked = parser.parse_args()


class Text(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        start = torch.randint(0, 50, (1,), generator=g)
        x = (start + torch.arange(asked.length + 1)) % 50
        return x[:-1], x[1:]


class Block(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(w), nn.LayerNorm(w)
        self.qkv, self.out = nn.Linear(w, 3 * w), nn.Linear(w, w)
        self.up, self.down = nn.Linear(w, 4 * w), nn.Linear(4 * w, w)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, w // 64, 64).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, w)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.n2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.pos = nn.Embedding(8192, asked.width), nn.Embedding(asked.length, asked.width)
        self.blocks = nn.Sequential(*[Block(asked.width) for _ in range(asked.layers)])
        self.norm, self.head = nn.LayerNorm(asked.width), nn.Linear(asked.width, 8192)

    def forward(self, x):
        h = self.emb(x) + self.pos(torch.arange(x.shape[1], device=x.device))
        return self.head(self.norm(self.blocks(h)))


cuda = torch.cuda.is_available()
rank = int(os.environ["LOCAL_RANK"])
if cuda and torch.cuda.device_count() < int(os.environ["LOCAL_WORLD_SIZE"]):
    os.environ["NCCL_HOSTID"] = f"rank-{rank}"  # two ranks on one card: for NCCL they are two nodes
torch.distributed.init_process_group("nccl" if cuda else "gloo")
dev = torch.device("cuda", rank % torch.cuda.device_count()) if cuda else torch.device("cpu")
if cuda:
    torch.cuda.set_device(dev)
torch.manual_seed(0)
model = DistributedDataParallel(GPT().to(dev))
opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
loader = DataLoader(Text(), batch_size=asked.batch, shuffle=True)
step = 0
while step < asked.steps:
    for x, y in loader:
        loss = F.cross_entropy(model(x.to(dev)).flatten(0, 1), y.to(dev).flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % 20 == 0:
            print(step, loss.item(), flush=True)
        if step >= asked.steps:
            break
