"""Trainings of several models, each without the advisor and then under strategies, all in one launch.

`many_models.py '[{"knob": value}, …]' [training …]` writes `$OUT/RANK.json`: by training and strategy how far losses
and parameters are from those without us, and on rank 0 what was in force. A strategy may break its hook on purpose:
`{"break": "lanes", …}`.
"""

import contextlib
import faulthandler
import itertools
import json
import os
import runpy
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from placement import BACKEND, DEVICE
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

runpy.run_path(str(Path(__file__).resolve().parents[4] / "agent" / "runtime" / "launch.py"))[
    "load_runtime_package"
]()
from fleet_advisor_runtime import current  # noqa: E402
from fleet_advisor_runtime.guard import stand_before  # noqa: E402
from fleet_advisor_runtime.inject.patches import install_patches  # noqa: E402
from fleet_advisor_runtime.levers.reduction.communicators import Communicators  # noqa: E402
from fleet_advisor_runtime.levers.reduction.lanes import ThreadLane  # noqa: E402
from fleet_advisor_runtime.link.environment import Environment  # noqa: E402
from fleet_advisor_runtime.runtime import Runtime  # noqa: E402

STEPS = int(os.environ.get("STEPS", "44"))
faulthandler.dump_traceback_later(int(os.environ.get("PATIENCE", "90")))


def wrap(*widths, **options):
    layers = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.Tanh())]
    return DDP(nn.Sequential(*layers).to(DEVICE), **options)


def draw(step, *shape):
    """Other numbers on each rank, the same in every run of a training."""
    generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    return torch.randn(*shape, generator=generator).to(DEVICE)


def sgd(*models):
    return torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.05)


def learn(optimizer, *losses):
    optimizer.zero_grad()
    for loss in losses:
        loss.backward()
    optimizer.step()
    return sum(loss.item() for loss in losses)


# Each takes the first step's number and yields its losses; what it yields first are its models.


def alike():
    """Two of three models of one shape, one of them used twice, one optimizer."""
    a, b, c = (wrap(16, 24, 16) for _ in range(3))
    o = sgd(a, b, c)
    yield [a, b, c]
    for step in range(STEPS):
        x = draw(step, 8, 16)
        yield learn(o, (c(a(x)) + c(b(x))).square().mean())


def chain():
    """Unequal sizes, one after another, one loss; some parameter of each has no part in it."""
    a, b = wrap(16, 64, 64, 8, find_unused_parameters=True), wrap(8, 12, 4, find_unused_parameters=True)
    a.module.register_parameter("idle", nn.Parameter(torch.zeros(3, device=DEVICE)))
    a = DDP(a.module, find_unused_parameters=True)
    o = torch.optim.Adam([*a.parameters(), *b.parameters()])
    yield [a, b]
    for step in range(STEPS):
        yield learn(o, b(a(draw(step, 8, 16))).square().mean())


def gan(**options):
    """A generator and a critic with batch norms and optimizers of their own; the critic is used three times a step."""
    norm = nn.BatchNorm1d(24)
    g = DDP(
        nn.Sequential(nn.Linear(8, 24), norm, nn.ReLU(), nn.Linear(24, 16)).to(DEVICE),
        broadcast_buffers=False,
        **options,
    )
    d = wrap(16, 40, 1)
    og, od = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
    yield [g, d]
    for step in range(STEPS):
        fake = g(draw(step, 8, 8))
        loss = learn(od, (1 - d(draw(-step, 8, 16))).square().mean() + d(fake.detach()).square().mean())
        yield loss + learn(og, (1 - d(fake)).square().mean())


def gan_unused():
    """The generator waits for its backward, and looks for unused parameters, while the critic's optimizer steps."""
    yield from gan(find_unused_parameters=True)


def inside():
    """Backward and step inside the wrapped forward, two nets in turn; the loss that it returns is kept."""

    class Manual(nn.Module):
        def __init__(self):
            super().__init__()
            self.nets = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 4)])

        def forward(self, x):
            for net, optimizer in zip(self.nets, optimizers, strict=True):
                loss = net(x).square().mean()
                optimizer.zero_grad()
                if model.require_backward_grad_sync:
                    model.reducer._rebuild_buckets()
                    model.reducer.prepare_for_backward([loss])
                loss.backward()
                optimizer.step()
            return loss

    model = DDP(Manual().to(DEVICE), find_unused_parameters=True)
    optimizers = [torch.optim.Adam(net.parameters()) for net in model.module.nets]
    yield [model]
    for step in range(STEPS):
        kept = model(draw(step, 8, 16))
        yield kept.item()


def frozen():
    """The same with the critic frozen while the generator learns, and three critic steps for each of its own."""
    g, d = wrap(8, 24, 16), wrap(16, 40, 1)
    og, od = sgd(g), sgd(d)
    yield [g, d]
    for step in range(STEPS):
        d.requires_grad_(True)
        loss = 0.0
        for turn in range(3):
            real = draw(step * 3 + turn, 8, 16)
            loss += learn(od, (1 - d(real)).square().mean() + d(g(real[:, :8]).detach()).square().mean())
        d.requires_grad_(False)
        yield loss + learn(og, (1 - d(g(draw(-step, 8, 8)))).square().mean())


def actor_critic():
    """Two losses over one graph that is kept, two optimizers; the actor's loss reaches into the critic."""
    body, actor, critic = wrap(16, 32), wrap(32, 4), wrap(32, 1)
    oa, oc = sgd(body, actor), sgd(critic)
    yield [body, actor, critic]
    for step in range(STEPS):
        state = body(draw(step, 8, 16))
        value, action = critic(state.detach()), actor(state)
        oc.zero_grad()
        oa.zero_grad()
        first = (value - 1).square().mean()
        first.backward(retain_graph=True)
        second = (action.square().mean(1, keepdim=True) * value.detach()).mean()
        second.backward()
        oc.step()
        oa.step()
        yield float(first) + float(second)


def interleaved():
    """Both forwards, then both backwards, with an optimizer step between them."""
    a, b = wrap(16, 24, 4), wrap(16, 48, 48, 4)
    oa, ob = sgd(a), sgd(b)
    yield [a, b]
    for step in range(STEPS):
        x = draw(step, 8, 16)
        first, second = a(x).square().mean(), b(x).square().mean()
        yield learn(oa, first) + learn(ob, second)


def overlapping():
    """The second model's forward of one step waits for its backward in the next, over the end of a step."""
    a, b = wrap(16, 24, 4), wrap(16, 48, 48, 4)
    oa, ob = sgd(a), sgd(b)
    yield [a, b]
    waiting = None
    for step in range(STEPS):
        x = draw(step, 8, 16)
        first = a(x).square().mean()
        loss = learn(ob, waiting) if waiting is not None else 0.0
        waiting = b(x).square().mean()
        yield loss + learn(oa, first)


def repeated():
    """Four models; one is used in several backwards of one step, another accumulates without exchange first."""
    a, b, c, d = wrap(16, 24), wrap(24, 8), wrap(24, 8, 8), wrap(16, 8)
    o = sgd(a, b, c, d)
    yield [a, b, c, d]
    for step in range(STEPS):
        x, y = draw(step, 8, 16), draw(-step, 8, 16)
        o.zero_grad()
        with d.no_sync():
            d(y).square().mean().backward()
        losses = [b(a(x)).square().mean(), c(a(y)).square().mean() + d(x).square().mean()]
        for loss in losses:
            loss.backward()
        o.step()
        yield sum(float(loss) for loss in losses)


def coming():
    """A model comes later, and one of the first goes."""
    a, b = wrap(16, 24, 8), wrap(8, 8)
    oa, ob = sgd(a), sgd(b)
    models = [a, b]
    yield models
    del a
    for step in range(STEPS):
        if step == STEPS // 3:
            c = wrap(16, 32, 8)
            oc = sgd(c)
            models.append(c)
        if step == 2 * STEPS // 3:
            del models[0], oa
        x = draw(step, 8, 16)
        y = models[0](x) if len(models) == 3 or step < STEPS // 3 else 0.0
        y = y + c(x) if step >= STEPS // 3 else y
        loss = b(y).square().mean()
        for optimizer in [o for o in (locals().get("oa"), locals().get("oc"), ob) if o is not None]:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in [o for o in (locals().get("oa"), locals().get("oc"), ob) if o is not None]:
            optimizer.step()
        yield float(loss)


def own_groups():
    """Each model over a process group of its own."""
    groups = [dist.new_group(list(range(dist.get_world_size()))) for _ in range(2)]
    a, b = (wrap(16, 24, 16, process_group=group) for group in groups)
    o = sgd(a, b)
    yield [a, b]
    for step in range(STEPS):
        x = draw(step, 8, 16)
        pair = (a, b) if step % 2 else (b, a)
        yield learn(o, sum(model(x).square().mean() for model in pair))


def rare():
    """One model learns in every eighth step only: in most steps it does not count as one that trains."""
    a, b = wrap(16, 24, 8), wrap(16, 32, 8)
    o = sgd(a, b)
    yield [a, b]
    for step in range(STEPS):
        x = draw(step, 8, 16)
        losses = [a(x).square().mean()] + ([b(x).square().mean()] if step % 8 == 7 else [])
        yield learn(o, *losses)


TRAININGS = [
    alike, chain, gan, gan_unused, inside, frozen, actor_critic, interleaved, overlapping, repeated, coming,
    own_groups, rare,
]  # fmt: skip


def train(training):
    """Every step's loss, and the parameters in the end."""
    torch.manual_seed(1)
    steps = training()
    models = next(steps)
    losses = list(steps)
    numbers = torch.cat([p.detach().reshape(-1) for model in models for p in model.parameters()])
    return torch.tensor(losses, dtype=torch.float64), numbers.double().cpu()


def steer(training, strategy, number):
    """The same under a strategy, as `advisor run` puts it in force."""
    report = Path(os.environ["OUT"]) / "report.json"
    report.unlink(missing_ok=True)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    environment = Environment(
        rank, world_size, rank, world_size, None, None, f"training-{number}", 0, None,
        strategy={"changes": strategy, "report": str(report) if rank == 0 else None},
    )  # fmt: skip
    runtime = Runtime(environment)
    current.set_current(stand_before(runtime))
    try:
        found = train(training)
        runtime.finish_script()
    finally:
        current.set_current(None)
    said = json.loads(report.read_text()) if rank == 0 and report.exists() else {}
    return found, {kind: said.get(kind, {}) for kind in ("in_force", "missing")}


@contextlib.contextmanager
def broken(how):
    """Lanes as they must not be: one for each model, over the process groups of all."""
    if how is None:
        yield
        return
    provide = Communicators.provide_lanes

    class Late(ThreadLane):
        late = 0

        def submit(self, work):
            Late.late += 1
            wait_s = 0.004 * ((Late.late + dist.get_rank()) % 2)
            return super().submit(lambda: (time.sleep(wait_s), work())[1])

    Communicators.provide_lanes = lambda self, count, *_: [Late() for _ in range(count)]
    try:
        yield
    finally:
        Communicators.provide_lanes = provide


if __name__ == "__main__":
    dist.init_process_group(BACKEND)
    torch.set_num_threads(1)
    install_patches()
    strategies, names = json.loads(sys.argv[1]), sys.argv[2:]
    results = {}
    for training in [t for t in TRAININGS if not names or t.__name__ in names]:
        losses, numbers = train(training)
        results[training.__name__] = found = []
        for place, strategy in enumerate(strategies):
            changes = dict(strategy)
            with broken(changes.pop("break", None)):
                (others, steered), said = steer(training, changes, f"{training.__name__}-{place}")
            mean = steered.to(DEVICE, copy=True)
            dist.all_reduce(mean)
            apart = float((mean.cpu() / dist.get_world_size() - steered.cpu()).abs().max())
            off = [float((b - a).abs().max()) for a, b in ((losses, others), (numbers, steered))]
            found.append({"losses_off": off[0], "off": off[1], "apart": apart, **said})
    (Path(os.environ["OUT"]) / f"{dist.get_rank()}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()
