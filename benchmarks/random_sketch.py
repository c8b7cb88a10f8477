"""What the kinds of random training scripts have in common: their head, a size, an optimizer, options of DDP."""

import random
from dataclasses import dataclass, field

HEAD = '''\
import contextlib, copy, hashlib, os, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

TELL, OUT, PLACE = os.dup(1), os.environ["OUT"], 0
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(7)
generator = torch.Generator().manual_seed(100 + rank)


def tell(*words):
    os.write(TELL, f"= {rank} {' '.join(map(str, words))}\\n".encode())


def numbers(parameters):
    """This rank's own, as they lie in memory."""
    own = [p.to_local() if hasattr(p, "to_local") else p for p in parameters]
    return [p.detach().contiguous().reshape(-1) for p in own]


def bits(parameters):
    text = hashlib.sha256()
    for own in numbers(parameters):
        text.update(own.view(torch.uint8).numpy().tobytes())
    return text.hexdigest()[:16]


def mark(step, loss, parameters):
    """After the gradients, before the update: what was averaged after the last one is in by now."""
    tell(step, f"{float(torch.as_tensor(loss).detach()):.17g}", f"{PLACE}:{bits(parameters)}")


def finish(parameters, *modules):
    """`modules`: whose buffers count, too."""
    tell("buffers", bits(b for module in modules for b in module.buffers()))
    parameters = list(parameters)
    own = torch.cat([part.double() for part in numbers(parameters)])
    own.numpy().tofile(f"{OUT}/{PLACE}-{rank}.parameters")
    tell("end", f"{float(own.abs().sum()):.17g}", f"{PLACE}:{bits(parameters)}")


class Net(nn.Module):
    def __init__(self, width, depth, norm=False):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norm = nn.BatchNorm1d(width) if norm else nn.Identity()

    def forward(self, x, first=0, last=None):
        for layer in self.layers[first:last]:
            x = x + 0.2 * torch.tanh(layer(x))
        return self.norm(x)


def batch(size=8):
    return torch.randn(size, WIDTH, generator=generator)


def far(out, x):
    return (out - x.roll(1, 1)).square().mean()


'''


@dataclass
class Sketch:
    """One kind's script."""

    body: str
    features: list[str] = field(default_factory=list)
    ranks: int = 2
    knobs: str = "reduction"
    """Which settings it is held against itself under: names of a group in `random_settings.py`."""

    @property
    def script(self) -> str:
        """The whole text."""
        return HEAD + self.body


def draw_sizes(draw: random.Random, steps: tuple[int, ...] = (26, 34)) -> str:
    width, depth = draw.choice((16, 96, 128)), draw.choice((2, 4))
    return f"WIDTH, DEPTH, STEPS = {width}, {depth}, {draw.choice(steps)}\n"


def draw_optimizer(draw: random.Random) -> str:
    return draw.choice(
        (
            "torch.optim.SGD({}, lr=0.05)",
            "torch.optim.SGD({}, lr=0.02, momentum=0.9)",
            "torch.optim.AdamW({}, lr=0.003)",
        )
    )


def draw_options(draw: random.Random) -> str:
    """Of DDP, that any script may have."""
    found = ""
    if draw.random() < 0.25:
        found += ", gradient_as_bucket_view=True"
    if draw.random() < 0.3:
        found += f", bucket_cap_mb={draw.choice((0.01, 0.07, 1))}"
    return found
