"""Kinds of random training scripts whose ranks share a model otherwise: in tensors, stages, shards, by replicate()."""

import random
from collections.abc import Callable

from random_sketch import Sketch, draw_optimizer, draw_options, draw_sizes


def draw_tensor_ddp(draw: random.Random) -> Sketch:
    """Four ranks: layers split over two, each half trained by DDP over two."""
    accumulate = draw.choice((1, 1, 2))
    body = f"""from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
{draw_sizes(draw)}
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
PLACE = mesh["tp"].get_local_rank()
generator = torch.Generator().manual_seed(100 + mesh["dp"].get_local_rank())
net = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
parallelize_module(net, mesh["tp"], {{"0": ColwiseParallel(), "2": RowwiseParallel()}})
_pre_dp_module_transform(net)
model = DDP(net, process_group=mesh.get_group("dp"){draw_options(draw)})
own = list(net.parameters())  # torch puts plain tensors in their place between two forwards
optimizer = {draw_optimizer(draw).format("own")}
for step in range(STEPS):
    for part in range({accumulate}):
        with model.no_sync() if part < {accumulate - 1} else contextlib.nullcontext():
            x = batch()
            loss = far(model(x), x)
            loss.backward()
    mark(step, loss, own)
    optimizer.step()
    optimizer.zero_grad()
finish(own)
"""
    return Sketch(body, [f"accumulate{accumulate}"], ranks=4)


def draw_pipeline_ddp(draw: random.Random) -> Sketch:
    """Four ranks: two stages of a pipeline, each trained by DDP over two."""
    schedule, parts = draw.choice(("ScheduleGPipe", "Schedule1F1B")), draw.choice((2, 4))
    # Where DDP does not search it rebuilds its buckets wrongly here and ends the script (torch 2.13, by itself).
    body = f"""from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, {schedule}
{draw_sizes(draw)}
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
PLACE = mesh["pp"].get_local_rank()
generator = torch.Generator().manual_seed(100 + mesh["dp"].get_local_rank())
net = Net(WIDTH, DEPTH)
model = DDP(net, process_group=mesh.get_group("dp"), find_unused_parameters=True{draw_options(draw)})
stage = PipelineStage(model, PLACE, 2, torch.device("cpu"), group=mesh.get_group("pp"))
schedule = {schedule}(stage, n_microbatches={parts}, loss_fn=lambda out, y: (out - y).square().mean())
optimizer = {draw_optimizer(draw).format("net.parameters()")}
for step in range(STEPS):
    x, losses = batch(), []
    if PLACE == 0:
        schedule.step(x)
    else:
        schedule.step(target=x.roll(1, 1), losses=losses)
    mark(step, sum(float(part.detach()) for part in losses), net.parameters())
    optimizer.step()
    optimizer.zero_grad()
finish(net.parameters())
"""
    return Sketch(body, [schedule, f"parts{parts}"], ranks=4)


def draw_replicate(draw: random.Random) -> Sketch:
    """The composable replicate() instead of a wrapper."""
    accumulate = draw.choice((1, 2))
    which = draw.choice(("whole", "in_parts"))
    wrap = f"replicate(net{draw_options(draw)})"
    if which == "in_parts":
        wrap = f"for layer in net.layers:\n    replicate(layer{draw_options(draw)})"
    sync = "net" if which == "whole" else "layer"
    loop = "" if which == "whole" else "for layer in net.layers: "
    body = f"""from torch.distributed._composable.replicate import replicate
{draw_sizes(draw)}
net = Net(WIDTH, DEPTH)
{wrap}
optimizer = {draw_optimizer(draw).format("net.parameters()")}
for step in range(STEPS):
    for part in range({accumulate}):
        {loop}{sync}.set_requires_gradient_sync(part == {accumulate - 1})
        x = batch()
        loss = far(net(x), x)
        (loss / {accumulate}).backward()
    mark(step, loss, net.parameters())
    optimizer.step()
    optimizer.zero_grad()
finish(net.parameters())
"""
    return Sketch(body, [which, f"accumulate{accumulate}"])


def draw_sharded(draw: random.Random) -> Sketch:
    """fully_shard, also over two copies, with every schedule of accumulation."""
    copies = draw.random() < 0.3
    schedule = draw.choice(("one", "all", "last", "last", "last_told", "kept_gathered", "first"))
    parts = 1 if schedule == "one" else draw.choice((2, 3))
    sync = {
        "last": "model.set_requires_gradient_sync(part + 1 == parts)",
        "first": "model.set_requires_gradient_sync(part == 0)",
        "last_told": "model.set_is_last_backward(part + 1 == parts); "
        "model.set_requires_gradient_sync(part + 1 == parts)",
        "kept_gathered": "model.set_reshard_after_backward(part + 1 == parts); "
        "model.set_requires_gradient_sync(part + 1 == parts)",
    }.get(schedule, "pass")
    mesh = (
        'init_device_mesh("cpu", (2, 2), mesh_dim_names=("copy", "shard"))'
        if copies
        else 'init_device_mesh("cpu", (2,))'
    )
    place = 'mesh["shard"].get_local_rank()' if copies else "rank"
    policy = draw.choice(("", "", ", mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)"))
    reshard = draw.choice(("", "", ", reshard_after_forward=False"))
    body = f"""from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
{draw_sizes(draw)}
mesh = {mesh}
PLACE = {place}
model = Net(WIDTH, DEPTH)
for layer in model.layers:
    fully_shard(layer, mesh=mesh{policy}{reshard})
fully_shard(model, mesh=mesh{policy})
optimizer = {draw_optimizer(draw).format("model.parameters()")}
for step in range(STEPS):
    parts = {parts}
    for part in range(parts):
        {sync}
        x = batch()
        loss = far(model(x), x)
        (loss / parts).backward()
    mark(step, loss, model.parameters())
    optimizer.step()
    optimizer.zero_grad()
finish(model.parameters())
"""
    features = [schedule, f"parts{parts}", *(["copies"] if copies else []), *(["bf16"] if policy else [])]
    return Sketch(body, features, ranks=4 if copies else 2, knobs="sharding")


LAYOUTS: dict[str, Callable[[random.Random], Sketch]] = {
    "tensor_ddp": draw_tensor_ddp,
    "pipeline_ddp": draw_pipeline_ddp,
    "replicate": draw_replicate,
    "sharded": draw_sharded,
}
