"""`fully_shard` on each layer of a small transformer, as PyTorch's own tutorial does it, on made-up tokens.

torchrun --nproc-per-node 2 fsdp2.py --steps 200
"""

import argparse

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

VOCABULARY, WIDTH, LAYERS, LENGTH, BATCH = 1000, 256, 6, 32, 4

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=0, help="0: without an end")
asked = parser.parse_args()


class Model(nn.Module):
    """Tokens in, logits of the next tokens out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of shape (batch, length, vocabulary)."""
        found = self.embed(tokens)
        for layer in self.layers:
            found = layer(found)
        return self.head(found)


distributed.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
model = Model()
mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
for layer in model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
made = torch.Generator().manual_seed(distributed.get_rank())
step = 0
while not asked.steps or step < asked.steps:
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), generator=made)
    logits = model(tokens[:, :-1])
    nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
distributed.destroy_process_group()
