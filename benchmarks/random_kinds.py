"""Kinds of random training scripts in which what is trained, or what is reduced, changes from step to step.

Each function draws one script. `random_scripts.py` draws the ordinary ones.
"""

import random
from collections.abc import Callable

from random_sketch import Sketch, draw_optimizer, draw_options, draw_sizes


def draw_unfreeze(draw: random.Random) -> Sketch:
    """Layers are frozen and trained again by a schedule; DDP was built while all could be trained."""
    how = draw.choice(("gradual", "later", "turns", "random", "once"))
    start, gap = draw.randrange(0, 8), draw.randrange(2, 9)
    frozen = {
        "gradual": f"[i for i in range(DEPTH - 1) if step < {start} + {gap} * (DEPTH - 1 - i)]",
        "later": f"[i for i in range(DEPTH - 1) if step >= {start} + {gap} * (i + 1)]",
        "turns": f"[i for i in range(DEPTH) if (step // {gap} + i) % 2]",
        "random": "[i for i in range(DEPTH) if random.Random(step // 3 * 10 + i).random() < 0.4][:DEPTH - 1]",
        "once": f"list(range(DEPTH - 1)) if {start} <= step < {start + 1} else []",
    }[how]
    clear = draw.choice(("", "", "set_to_none=False"))
    body = f"""import random
{draw_sizes(draw)}
net = Net(WIDTH, DEPTH)
model = DDP(net, find_unused_parameters=True{draw_options(draw)})
optimizer = {draw_optimizer(draw).format("net.parameters()")}
for step in range(STEPS):
    frozen = {frozen}
    for i, layer in enumerate(net.layers):
        layer.requires_grad_(i not in frozen)
    x = batch()
    loss = far(model(x), x)
    loss.backward()
    mark(step, loss, net.parameters())
    optimizer.step()
    optimizer.zero_grad({clear})
finish(net.parameters())
"""
    return Sketch(body, [how, f"start{start}", f"gap{gap}"])


def draw_toggle(draw: random.Random) -> Sketch:
    """One model of two players; requires_grad is toggled around each one's turn."""
    turns = draw.choice(("both", "by_step", "two_to_one"))
    accumulate = draw.choice((1, 1, 2))
    order = draw.choice(('"gd"', '"dg"'))
    whose = {
        "both": order,
        "by_step": f"{order}[step % 2]",
        "two_to_one": f"{order} if step % 2 else {order}[0]",
    }[turns]
    body = f"""{draw_sizes(draw)}
class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.g, self.d = Net(WIDTH, DEPTH), Net(WIDTH, DEPTH)

    def forward(self, x, player):
        return self.d(self.g(x)) if player == "g" else self.d(x)

two = Two()
model = DDP(two, find_unused_parameters=True{draw_options(draw)})
players = {{"g": two.g, "d": two.d}}
optimizers = {{name: {draw_optimizer(draw).format("player.parameters()")} for name, player in players.items()}}
for step in range(STEPS):
    for name in {whose}:
        other = players["d" if name == "g" else "g"]
        other.requires_grad_(False)
        for part in range({accumulate}):
            with model.no_sync() if part < {accumulate - 1} else contextlib.nullcontext():
                x = batch()
                loss = far(model(x, name), x) if name == "g" else model(x, name).square().mean()
                (loss / {accumulate}).backward()
        mark(f"{{step}}{{name}}", loss, two.parameters())
        optimizers[name].step()
        optimizers[name].zero_grad()
        other.requires_grad_(True)
finish(two.parameters())
"""
    return Sketch(body, [turns, f"accumulate{accumulate}"])


def draw_adapters(draw: random.Random) -> Sketch:
    """A frozen base with an adapter for each task; only the task's own is trained."""
    tasks = draw.choice((2, 3))
    which = draw.choice(
        (
            f"step % {tasks}",
            f"step // 5 % {tasks}",
            f"(step + rank) % {tasks}",
            f"min(step // 12, {tasks - 1})",
        )
    )
    switched = draw.random() < 0.7
    switch = "adapter.requires_grad_(i == task)" if switched else "pass"
    body = f"""{draw_sizes(draw)}
class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = Net(WIDTH, DEPTH).requires_grad_(False)
        self.adapters = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)) for _ in range({tasks}))

    def forward(self, x, task):
        return self.base(x) + self.adapters[task](x)

net = Adapted()
model = DDP(net, find_unused_parameters=True{draw_options(draw)})
optimizer = {draw_optimizer(draw).format("net.adapters.parameters()")}
for step in range(STEPS):
    task = {which}
    for i, adapter in enumerate(net.adapters):
        {switch}
    x = batch()
    loss = far(model(x, task), x)
    loss.backward()
    mark(step, loss, net.parameters())
    optimizer.step()
    optimizer.zero_grad()
finish(net.parameters())
"""
    return Sketch(body, [which.replace(" ", ""), "switched" if switched else "all_trained"])


def draw_frozen_critic(draw: random.Random) -> Sketch:
    """Two DDP models; one has no trainable parameter at the first forward of a step."""
    part, every = draw.random() < 0.3, draw.choice((1, 1, 2))
    search = ", find_unused_parameters=True" if part else ""
    which = "d.module.layers[0]" if part else "d"
    body = f"""{draw_sizes(draw)}
g, d = DDP(Net(WIDTH, DEPTH){draw_options(draw)}), DDP(Net(WIDTH, DEPTH){search}{draw_options(draw)})
og, od = {draw_optimizer(draw).format("g.parameters()")}, {draw_optimizer(draw).format("d.parameters()")}
both = [*g.parameters(), *d.parameters()]
for step in range(STEPS):
    x = batch()
    for p in {which}.parameters():
        p.requires_grad = False
    og.zero_grad()
    fake = g(x)
    loss = far(fake, x) - 0.1 * d(fake).mean()
    loss.backward()
    mark(f"{{step}}g", loss, both)
    og.step()
    for p in {which}.parameters():
        p.requires_grad = True
    if step % {every} == 0:
        od.zero_grad()
        loss = (d(x) - 1).square().mean()
        loss.backward()
        other = (d(fake.detach()) + 1).square().mean()
        other.backward()
        mark(f"{{step}}d", loss + other, both)
        od.step()
finish(both)
"""
    return Sketch(body, ["in_part" if part else "whole", f"every{every}"])


def draw_frozen_wrapping(draw: random.Random) -> Sketch:
    """Layers are frozen when DDP is built; later trained, after another wrapping or (the script's bug) without."""
    how = draw.choice(("for_ever", "rewrapped", "forgotten"))
    spot = draw.randrange(4, 24)
    change = {
        "for_ever": "pass",
        "rewrapped": f"net.requires_grad_(True)\n        model = DDP(net{draw_options(draw)})\n"
        "        optimizer = optimize()",
        "forgotten": "net.requires_grad_(True)\n        optimizer = optimize()",
    }[how]
    body = f"""{draw_sizes(draw, (34, 42))}
net = Net(WIDTH, DEPTH, {draw.random() < 0.3})
for layer in net.layers[: DEPTH // 2]:
    layer.requires_grad_(False)
model = DDP(net{draw_options(draw)})

def optimize():
    return {draw_optimizer(draw).format("[p for p in net.parameters() if p.requires_grad]")}

optimizer = optimize()
for step in range(STEPS):
    if step == {spot}:
        {change}
    x = batch()
    loss = far(model(x), x)
    loss.backward()
    mark(step, loss, net.parameters())
    optimizer.step()
    optimizer.zero_grad()
finish(net.parameters(), net)
"""
    return Sketch(body, [how, f"spot{spot}"])


def draw_untrained(draw: random.Random) -> Sketch:
    """Beside the model that trains there are models without a trainable parameter."""
    how = draw.choice(("teacher", "wrapped_teacher", "all_frozen", "phase", "average"))
    begin = draw.randrange(2, 12)
    prepare, before, after = "", "", ""
    output = "model(x)"
    if how == "teacher":
        prepare = "teacher = copy.deepcopy(net).requires_grad_(False)"
        output = "model(x) + 0.1 * teacher(x)"
    elif how == "wrapped_teacher":
        prepare = "teacher = DDP(Net(WIDTH, DEPTH))\nteacher.requires_grad_(False)"
        output = "model(x) + 0.1 * teacher(x)"
    elif how == "average":
        prepare = "teacher = copy.deepcopy(net).requires_grad_(False)"
        output = "model(x) + 0.1 * teacher(x)"
        after = "\n    torch._foreach_lerp_(list(teacher.parameters()), [p.detach() for p in net.parameters()], 0.1)"
    else:
        prepare = "probe = DDP(nn.Linear(WIDTH, WIDTH))"
        output = "probe(model(x))"
        ends = begin + draw.randrange(3, 9) if how == "phase" else 1000
        before = f"\n    net.requires_grad_(not {begin} <= step < {ends})"
    body = f"""{draw_sizes(draw)}
net = Net(WIDTH, DEPTH)
model = DDP(net{draw_options(draw)})
probe = None
{prepare}
trained = [*net.parameters(), *(probe.parameters() if probe is not None else ())]
optimizer = {draw_optimizer(draw).format("trained")}
for step in range(STEPS):{before}
    x = batch()
    loss = far({output}, x)
    loss.backward()
    mark(step, loss, trained)
    optimizer.step()
    optimizer.zero_grad(){after}
finish(trained)
"""
    return Sketch(body, [how])


def draw_modes(draw: random.Random) -> Sketch:
    """Every mode of DDP with every schedule of no_sync, also the wrong ones that scripts have."""
    mode = draw.choice(
        ("plain", "static_graph", "find_unused", "views", "buffers", "no_buffers", "delayed", "skip_unused",
         "cap_list", "batched_copy", "no_init_sync", "own_hook", "own_state", "bf16_hook")
    )  # fmt: skip
    schedule = draw.choice(
        ("one", "all", "last", "first", "every_other", "misaligned", "around_backward", "forward_only",
         "growing", "by_rank", "post_local")
    )  # fmt: skip
    count = 1 if schedule in ("one", "post_local") else draw.choice((2, 3))
    option = {
        "static_graph": "static_graph=True",
        "find_unused": "find_unused_parameters=True",
        "views": "gradient_as_bucket_view=True",
        "no_buffers": "broadcast_buffers=False",
        "delayed": "delay_all_reduce_named_params=[p for p in net.named_parameters() if p[0].startswith('layers.1')],"
        " param_to_hook_all_reduce=net.layers[0].weight",
        "skip_unused": "find_unused_parameters=True, skip_all_reduce_unused_params=True",
        "cap_list": "bucket_cap_mb_list=[0.05, 0.1]",
        "batched_copy": "batched_grad_copy=True",
        "no_init_sync": "init_sync=False",
    }.get(mode, "bucket_cap_mb=0.07")
    held = {
        "one": "False", "all": "False", "around_backward": "False", "last": "part + 1 < parts",
        "growing": "part + 1 < parts", "by_rank": "part + 1 < parts", "first": "part > 0",
        "every_other": "part + 1 < parts or step % 2", "misaligned": "(step * parts + part + 1) % (parts + 1)",
        "forward_only": "part + 1 == parts", "post_local": f"step >= {draw.choice((2, 12, 20))}",
    }[schedule]  # fmt: skip
    if mode == "static_graph":
        held = f"step > 0 and ({held})"  # its first pass has to reduce
    parts = {"growing": "1 + step // 6", "by_rank": f"{count} + rank"}.get(schedule, str(count))
    unused = mode in ("find_unused", "skip_unused")
    last = "DEPTH - 1" if mode == "skip_unused" else "DEPTH - step % 2" if unused else "None"
    average = ""
    if schedule == "post_local":
        average = """
    if step % 4 == 3:
        for p in net.parameters():
            dist.all_reduce(p.data)
            p.data.div_(world)"""
    register = {
        "own_hook": "\nmodel.register_comm_hook(None, hook)",
        "own_state": "\nmodel.register_comm_hook(collections.Counter(), count)",
        "bf16_hook": "\nmodel.register_comm_hook(None, default_hooks.bf16_compress_hook)",
    }.get(mode, "")
    wait = "\n    time.sleep(0.01); dist.barrier()" if mode == "delayed" else ""
    inside = "(loss / parts).backward()"
    if schedule == "around_backward":
        inside = (
            f"with model.no_sync() if part + 1 < parts else contextlib.nullcontext():\n            {inside}"
        )
    elif schedule == "forward_only":
        inside = f"\n        {inside}"
    else:
        inside = f"    {inside}"
    body = f"""import collections
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
{draw_sizes(draw)}
def hook(state, bucket):
    \"\"\"Twice the mean.\"\"\"
    buffer = bucket.buffer().div_(world).mul_(2)
    return dist.all_reduce(buffer, async_op=True).get_future().then(lambda done: done.value()[0])

def count(state, bucket):
    state[bucket.index()] += 1
    return default_hooks.allreduce_hook(None, bucket)

net = Net(WIDTH, DEPTH, {mode in ("buffers", "no_buffers")})
model = DDP(net, {option}){register}
optimizer = {draw_optimizer(draw).format("net.parameters()")}
for step in range(STEPS):
    parts = {parts}
    for part in range(parts):
        with model.no_sync() if {held} else contextlib.nullcontext():
            x = batch()
            loss = far(model(x, 0, {last}), x)
        {inside}{wait}
    mark(step, loss, net.parameters())
    optimizer.step()
    optimizer.zero_grad(){average}
finish(net.parameters(), net)
"""
    return Sketch(body, [mode, schedule, f"parts{count}"], knobs="reduction")


KINDS: dict[str, Callable[[random.Random], Sketch]] = {
    "unfreeze": draw_unfreeze,
    "toggle": draw_toggle,
    "adapters": draw_adapters,
    "frozen_critic": draw_frozen_critic,
    "frozen_wrapping": draw_frozen_wrapping,
    "untrained": draw_untrained,
    "modes": draw_modes,
}
