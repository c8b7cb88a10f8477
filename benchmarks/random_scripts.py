"""Draws an ordinary random script: models, optimizers, accumulation, bad batches and endings in any mixture."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random_cases import Case

HEAD = """\
import contextlib, hashlib, math, os, signal, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(7)
OUT = os.environ["OUT"]


def tell(*words):
    os.write(1, f"= {rank} {' '.join(map(str, words))}\\n".encode())


def show(loss):
    return f"{float(loss):.17g}"


class Mlp(nn.Module):
    def __init__(self, width, depth, unused=False, tied=False):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.spare = nn.Linear(width, width) if unused else None
        if tied:
            self.layers[-1].weight = self.layers[0].weight

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class Conv(nn.Module):
    def __init__(self, width, norm):
        super().__init__()
        self.first, self.second = nn.Conv1d(1, 4, 3, padding=1), nn.Conv1d(4, 1, 3, padding=1)
        self.norm = nn.BatchNorm1d(4) if norm else nn.Identity()

    def forward(self, x):
        return self.second(torch.relu(self.norm(self.first(x[:, None]))))[:, 0]


class Words(nn.Module):
    def __init__(self, width, sparse):
        super().__init__()
        self.table, self.out = nn.Embedding(50, width, sparse=sparse), nn.Linear(width, width)

    def forward(self, x):
        places = (x[:, :4].abs() * 1000).long() % 50
        return self.out(self.table(places).mean(1)) + 0.1 * x


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, place):
        return torch.sin(torch.arange(WIDTH) * (place % 97 + 1.0) + rank)


def digest(models):
    text = hashlib.sha256()
    for model in models:
        for value in model.state_dict().values():
            text.update(value.detach().contiguous().numpy().tobytes())
    return text.hexdigest()


def leave(models):
    own = torch.cat([p.detach().double().reshape(-1) for model in models for p in model.parameters()])
    own.numpy().tofile(f"{OUT}/0-{rank}.parameters")


def numbers(models):
    return sum(float(value.double().abs().sum()) for model in models for value in model.state_dict().values())
"""


def draw_script(draw: random.Random, case: Case) -> str:
    """The text after the head; what is in it is noted in the case."""

    def chance(share: float, name: str) -> bool:
        found = draw.random() < share
        if found:
            case.features.append(name)
        return found

    def choose(*names: str) -> str:
        name = draw.choice(names)
        if name != "plain":
            case.features.append(name)
        return name

    width, count = draw.choice((16, 128)), draw.choice((1, 1, 1, 2, 3))
    way = "one" if count == 1 else choose("chained", "apart", "alternating", "summed")
    steps = draw.choice((10, 22, 30, 40))
    unused, accumulate = chance(0.12, "unused"), draw.choice((1, 1, 1, 2, 3))
    frozen, tied = chance(0.15, "frozen"), chance(0.1, "tied")
    hold = accumulate > 1 and chance(0.6, "no_sync")
    case.features += [f"models{count}", f"accumulate{accumulate}"]
    lines = [f"WIDTH, STEPS, COUNT, ACCUMULATE = {width}, {steps}, {count}, {accumulate}", "", "def build():"]
    for index in range(count):
        kind = draw.choice(("mlp", "mlp", "conv", "words"))
        model = {
            "mlp": f"Mlp({width}, {draw.choice((1, 2, 4))}, {unused}, {tied})",
            "conv": f"Conv({width}, {chance(0.5, 'batch_norm')})",
            "words": f"Words({width}, {case.settings.get('dgc') is None and chance(0.3, 'sparse')})",
        }[kind]
        lines.append(f"    m{index} = {model}")
        if frozen:
            lines += [f"    if sum(p.requires_grad for p in m{index}.parameters()) > 2:",
                      f"        next(m{index}.parameters()).requires_grad_(False)"]  # fmt: skip
    options = []
    if unused:
        options.append("find_unused_parameters=True")
    elif accumulate == 1 and way == "one" and chance(0.1, "static_graph"):
        options.append("static_graph=True")
    if chance(0.2, "views"):
        options.append("gradient_as_bucket_view=True")
    if chance(0.2, "no_buffers"):
        options.append("broadcast_buffers=False")
    if chance(0.3, "own_cap"):
        options.append(f"bucket_cap_mb={draw.choice((0.001, 0.01, 1))}")
    extra = "".join(f", {option}" for option in options)
    lines.append(f"    return [DDP(m{extra}) for m in ({', '.join(f'm{i}' for i in range(count))},)]")
    lines += ["", "models = build()"]
    sparse = "sparse" in case.features
    makers = ["torch.optim.SGD({}, lr=0.05)", "torch.optim.SGD({}, lr=0.02, momentum=0.9)"]
    if not sparse:
        makers += [
            "torch.optim.Adam({}, lr=0.003)",
            "torch.optim.AdamW({}, lr=0.003)",
            "torch.optim.RMSprop({}, lr=0.001)",
        ]
    maker = draw.choice(makers)
    each = count > 1 and (way == "alternating" or chance(0.5, "optimizer_each"))
    lines += ["def optimize():"]
    trained = "[p for p in {}.parameters() if p.requires_grad]"
    if each:
        lines += [f"    return [{maker.format(trained.format('m'))} for m in models]"]
    else:
        lines += [
            f"    return [{maker.format('[p for m in models for p in m.parameters() if p.requires_grad]')}]"
        ]
    lines += ["optimizers = optimize()"]
    scheduled = chance(0.3, "scheduler")
    if scheduled:
        lines += ["schedules = [torch.optim.lr_scheduler.StepLR(o, 5, 0.9) for o in optimizers]"]
    clip = "" if sparse else draw.choice(("", "", "norm", "value"))
    if clip:
        case.features.append(f"clip_{clip}")
    batched = chance(0.4, "loader")
    ends = ["plain"] * 8 + [
        "ends_early",
        "raise_one",
        "raise_all",
        "sigterm",
        "sigterm_caught",
        "sigint",
        "exit_code",
    ]
    if count == 1 and not unused and "dgc" not in case.settings:
        ends += ["join"] * 3
    end = choose(*ends)
    skips = ["plain"] * 3
    if end != "join":
        skips += ["skip_all", "drop_one", "drop_all", "caught_error"]
        # What one rank leaves out none may do with others.
        lonely = ["skip_step_one"] if way != "alternating" else []
        skips += [*lonely, *(["uneven_no_sync"] if hold and not batched else [])]
    skip = choose(*skips)
    if batched:
        lines += ["loader = torch.utils.data.DataLoader(Data(), batch_size=8)", "batches = iter(loader)"]
        fetch = "next(batches)"
    else:
        lines += ["generator = torch.Generator().manual_seed(100 + rank)"]
        fetch = "torch.randn(8, WIDTH, generator=generator)"
    spot = draw.randrange(2, steps)
    places = sorted(draw.sample(range(2, steps), min(3, steps - 2)))
    lines += [f"SPOT, PLACES = {spot}, {places}"]
    if end == "sigterm_caught":
        lines += [
            "def leave(*_):",
            "    tell('signal')",
            "    raise SystemExit(3)",
            "signal.signal(signal.SIGTERM, leave)",
        ]
    lines += ["", "", "def losses(x):"]
    if way in ("one", "chained"):
        lines += ["    out = x", "    for m in models:", "        out = m(out)",
                  "    yield 0, (out - x.roll(1, 1)).square().mean()"]  # fmt: skip
    elif way == "summed":
        lines += ["    yield 0, sum((m(x) - x.roll(1, 1)).square().mean() for m in models)"]
    elif way == "apart":
        lines += [
            "    for i, m in enumerate(models):",
            "        yield i, (m(x) - x.roll(i, 1)).square().mean()",
        ]
    else:
        lines += ["    fake = models[0](x)", "    for m in models[1:]:",
                  "        yield 1, m(fake.detach()).mean() - m(x).mean() + 1",
                  "    yield 0, -models[-1](fake).mean()"]  # fmt: skip
    report, evaluate = chance(0.25, "own_allreduce"), chance(0.3, "evaluates")
    save, slow, barrier = chance(0.3, "saves"), chance(0.1, "slow_rank"), chance(0.1, "barrier")
    remake, rewrap = (
        end != "join" and chance(share, name) for share, name in ((0.06, "reinit"), (0.08, "rewrap"))
    )
    body = ["x = " + fetch]
    if slow:
        body += ["if rank == 0: time.sleep(0.003)"]
    if end == "raise_one":
        body += ["if step == SPOT and rank == world - 1: raise RuntimeError('mine')"]
    if end == "raise_all":
        body += ["if step == SPOT: raise RuntimeError('all')"]
    if end == "exit_code":
        body += ["if step == SPOT: sys.exit(5)"]
    if end in ("sigterm", "sigterm_caught"):
        body += ["if step == SPOT: os.kill(os.getpid(), signal.SIGTERM)"]
    if end == "sigint":
        body += ["if step == SPOT: os.kill(os.getpid(), signal.SIGINT)"]
    if end == "ends_early":
        body += ["if step == SPOT and rank == 0: break"]
    if skip == "drop_all":
        body += ["if step in PLACES: continue"]
    if skip == "drop_one":
        body += ["if step in PLACES and rank == 0: x = " + fetch]
    if skip == "caught_error":
        body += [
            "try:",
            "    if step in PLACES: raise ValueError('bad batch')",
            "except ValueError:",
            "    continue",
        ]
    if remake:
        body += ["if step == 9:",
                 "    inner = [m.module for m in models]; models.clear(); dist.barrier(); dist.destroy_process_group()",
                 "    dist.init_process_group('gloo', f'file://{OUT}/again', rank=rank, world_size=world)",
                 f"    models.extend(DDP(m{extra}) for m in inner); del inner"]  # fmt: skip
    elif rewrap:
        body += ["if step == 11:", f"    models[:] = [DDP(m.module{extra}) for m in models]"]
    body += ["total = 0.0"]
    turns = "ACCUMULATE" + (" + rank" if skip == "uneven_no_sync" and hold and not batched else "")
    if accumulate > 1:
        body += [f"turns = {turns}", "for turn in range(turns):"]
        if hold:
            body += ["    with contextlib.ExitStack() as stack:", "        if turn + 1 < turns:",
                     "            [stack.enter_context(m.no_sync()) for m in models]"]  # fmt: skip
            inner = "        "
        else:
            inner = "    "
        body += [inner + "for place, loss in losses(x if turn == 0 else x + 0.01 * turn):",
                 inner + "    (loss / turns).backward(); total += float(loss)"]  # fmt: skip
    elif way == "alternating":
        body += ["for place, loss in losses(x):", "    for o in optimizers: o.zero_grad()", "    loss.backward()",
                 "    (optimizers[place] if place == 0 else optimizers[-1]).step(); total += float(loss)"]  # fmt: skip
    else:
        body += ["for place, loss in losses(x):", "    loss.backward(); total += float(loss)"]
    if clip == "norm":
        body += ["for m in models: nn.utils.clip_grad_norm_(m.parameters(), 0.5)"]
    if clip == "value":
        body += ["for m in models: nn.utils.clip_grad_value_(m.parameters(), 0.05)"]
    if skip == "skip_all":
        body += ["if step in PLACES:", "    for o in optimizers: o.zero_grad()", "    continue"]
    if skip == "skip_step_one":
        body += [
            "if step in PLACES and rank == world - 1:",
            "    for o in optimizers: o.zero_grad()",
            "    continue",
        ]
    if way != "alternating" or accumulate > 1:
        body += ["for o in optimizers:", "    o.step(); o.zero_grad()"]
    if scheduled:
        body += ["for s in schedules: s.step()"]
    body += ["tell(step, show(total))"]
    if report:
        body += [
            "if step % 4 == 0:",
            "    mean = torch.tensor([total]); dist.all_reduce(mean); tell('mean', show(mean))",
        ]
        case.features += ["(allreduce)"]
    if evaluate:
        body += ["if step % 6 == 5:", "    for m in models: m.eval()", "    with torch.no_grad():",
                 "        tell('eval', show(sum(float(m(torch.ones(4, WIDTH)).square().mean()) for m in models)))",
                 "    for m in models: m.train()"]  # fmt: skip
    if save:
        body += ["if step % 8 == 7 and rank == 0:",
                 "    torch.save([m.state_dict() for m in models], f'{OUT}/step{step}.pt')"]  # fmt: skip
    if barrier:
        body += ["if step % 10 == 0: dist.barrier()"]
    lines += [
        "",
        "",
        "def train(steps):",
        "    for step in range(steps):",
        *("        " + line for line in body),
    ]
    if skip in ("skip_step_one", "uneven_no_sync") and (report or barrier):
        # A `continue` of one rank would leave the others in these.
        lines = [
            line.replace("step % 4 == 0:", "False:").replace("step % 10 == 0:", "False:") for line in lines
        ]
    if end == "join":
        lines += ["", "", "for epoch in range(3):", "    with Join(models):", "        train(STEPS // 3 + 2 * rank)",
                  "    tell('epoch', epoch)"]  # fmt: skip
        lines = [
            line.replace("step % 4 == 0:", "False:").replace("step % 10 == 0:", "False:") for line in lines
        ]
        if draw.random() < 0.4:
            case.features.append("plain_before_join")
            lines.insert(len(lines) - 4, "train(20)")
    else:
        lines += ["", "", "train(STEPS)"]
    lines += ["leave(models)", "tell('end', show(numbers(models)), digest(models))"]
    if end not in ("ends_early", "join") and draw.random() < 0.5:
        lines += ["dist.destroy_process_group()"]
    return "\n".join(lines) + "\n"
