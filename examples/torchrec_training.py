"""A recommender with sharded embedding tables: an ordinary TorchRec script that reads its sharding plan from a file.

`torchrun --nproc-per-node 2 torchrec_training.py --plan plans/default.json`; without --plan TorchRec's planner decides.
It needs torchrec beside the advisor (docs/frameworks/torchrec.md).
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from agent.workloads.torchrec_plans import read_plan

NUMBERS, WIDTH = 13, 64
TABLES = {
    "user": (40_000, 1),
    "item": (20_000, 20),
    "tag": (4_000, 10),
    "shop": (400, 1),
    "country": (200, 1),
}
"""Rows of each table, and how many of them a sample looks up."""


class Recommender(nn.Module):
    """A network over the sums of the looked-up rows and the numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = EmbeddingBagCollection(
            device=torch.device("meta"),
            tables=[
                EmbeddingBagConfig(name=name, embedding_dim=WIDTH, num_embeddings=rows, feature_names=[name])
                for name, (rows, _) in TABLES.items()
            ],
        )
        self.over = nn.Sequential(nn.Linear(NUMBERS + WIDTH * len(TABLES), 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, numbers: torch.Tensor, ids: KeyedJaggedTensor) -> torch.Tensor:
        found = self.tables(ids).to_dict()  # By name: the order of .values() is another under another plan.
        return self.over(torch.cat([numbers, *(found[name] for name in TABLES)], dim=1)).squeeze(1)


def build_model() -> nn.Module:
    """The model as it is before it is sharded: the tables are described, and hold no memory."""
    return Recommender()


def draw_batch(size: int, generator: torch.Generator) -> tuple[torch.Tensor, KeyedJaggedTensor, torch.Tensor]:
    lengths = torch.cat([torch.full((size,), count) for _, count in TABLES.values()])
    values = [torch.randint(rows, (size * count,), generator=generator) for rows, count in TABLES.values()]
    numbers = torch.randn(size, NUMBERS, generator=generator)
    ids = KeyedJaggedTensor(keys=list(TABLES), values=torch.cat(values), lengths=lengths)
    return numbers, ids, (numbers[:, 0] + values[-1] % 2 > 0.5).float()


@torch.no_grad()
def start_alike(model: nn.Module) -> None:
    """The same first weights under every plan: TorchRec draws those of each shard for itself."""
    state = model.state_dict()
    for seed, (table, (rows, _)) in enumerate(TABLES.items()):
        whole = torch.empty(rows, WIDTH).normal_(std=0.1, generator=torch.Generator().manual_seed(seed))
        weight = state[f"tables.embedding_bags.{table}.weight"]
        if not hasattr(weight, "local_shards"):
            weight.copy_(whole)
            continue
        for shard in weight.local_shards():
            top, left = shard.metadata.shard_offsets
            height, width = shard.tensor.shape
            shard.tensor.copy_(whole[top : top + height, left : left + width])


def build_sharded(plan: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model under the plan of a file, the planner's where it is empty, and what updates its network."""
    model = build_model()
    apply_optimizer_in_backward(torch.optim.SGD, model.tables.parameters(), {"lr": 0.1})
    model = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=read_plan(plan) if plan else None
    )
    start_alike(model)
    own = dict(in_backward_optimizer_filter(model.named_parameters()))
    dense = KeyedOptimizerWrapper(own, lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    return model, CombinedOptimizer([model.fused_optimizer, dense])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", default="", help="File with the plan; empty: TorchRec's planner decides.")
    parser.add_argument("--batch", type=int, default=512, help="Samples of a rank and step.")
    parser.add_argument("--steps", type=int, default=100_000)
    asked = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, optimizer = build_sharded(asked.plan)
    generator = torch.Generator().manual_seed(dist.get_rank())
    if dist.get_rank() == 0:
        print(model.plan, flush=True)
    for step in range(asked.steps):
        numbers, ids, clicked = draw_batch(asked.batch, generator)
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(numbers, ids), clicked)
        loss.backward()
        optimizer.step()
        if step % 100 == 0 and dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
