"""Kinds of random training scripts with unusual objects: what a model returns, where batches and messages go."""

import random
from collections.abc import Callable

from random_sketch import Sketch, draw_optimizer, draw_options, draw_sizes

OUTPUTS = {
    "slots": """
@dataclasses.dataclass(slots=True)
class Output:
    out: torch.Tensor
    extra: object = None

def pack(out): return Output(out)
def unpack(o): return o.out
""",
    "own_slots": """
class Output:
    __slots__ = ("out",)
    def __init__(self, out): self.out = out

def pack(out): return Output(out)
def unpack(o): return o.out
""",
    "dict_subclass": """
class Output(dict):
    def __init__(self, out): super().__init__(out=out, parts={"again": [out, None]})
    def __getattr__(self, name): return self[name]

def pack(out): return Output(out)
def unpack(o): return o["out"]
""",
    "named_tuple": """
class Output(NamedTuple):
    out: torch.Tensor
    rest: object

def pack(out): return Output(out, {"a": (out.detach(), 3)})
def unpack(o): return o.out
""",
    "tuple_subclass": """
class Output(tuple):
    def __new__(cls, *, out): return super().__new__(cls, (out, 1))

def pack(out): return Output(out=out)
def unpack(o): return o[0]
""",
    "self_holding": """
def pack(out):
    found = {"out": out, "list": []}
    found["self"] = found
    found["list"].append(found["list"])
    return found
def unpack(o): return o["out"]
""",
    "generator": """
def pack(out):
    for part in (out, None):
        yield part
def unpack(o): return next(o)
""",
    "map": """
def pack(out): return map(lambda t: t * 1.0, [out])
def unpack(o): return next(o)
""",
    "raises_on_sight": """
class Output:
    def __init__(self, out): object.__setattr__(self, "_own", out)
    def __getattr__(self, name): raise KeyError(name)
    def __len__(self): raise ValueError("no length")
    def __iter__(self): raise OSError("not to be walked")
    def __bool__(self): raise RuntimeError("neither true nor false")
    def __eq__(self, other): raise RuntimeError("not to be compared")
    __hash__ = None
    @property
    def logits(self): raise RuntimeError("not there yet")

def pack(out): return Output(out)
def unpack(o): return object.__getattribute__(o, "_own")
""",
    "deep": """
def pack(out):
    found = [out]
    for _ in range(1200): found = [found]
    return found
def unpack(o):
    while isinstance(o, list): o = o[0]
    return o
""",
    "large": """
def pack(out): return [out, *range(20000), *[out.detach()] * 2000]
def unpack(o): return o[0]
""",
    "function": """
def pack(out): return lambda: out
def unpack(o): return o()
""",
    "nothing": """
HELD = []
def pack(out): HELD[:] = [out]
def unpack(o): return HELD.pop()
""",
    "distribution": """
def pack(out): return torch.distributions.Normal(out, 1.0)
def unpack(o): return o.mean
""",
    "tensor_subclass": """
class Output(torch.Tensor): pass

def pack(out): return out.as_subclass(Output)
def unpack(o): return o.as_subclass(torch.Tensor)
""",
}
"""What a model returns, and how the script reads it."""

LOADERS = {
    "no_length": """
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        for place in range(STEPS * 8): yield item(place)

loader = torch.utils.data.DataLoader(Stream(), batch_size=8)
""",
    "length_raises": """
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        for place in range(STEPS * 8): yield item(place)
    def __len__(self):
        asked["len"] += 1
        raise {error}("a stream has no length")

loader = torch.utils.data.DataLoader(Stream(), batch_size=8)
""",
    "own_iterable": """
class Batches:
    def __iter__(self):
        asked["iter"] += 1
        return (torch.stack([item(p) for p in range(8 * b, 8 * b + 8)]) for b in range(STEPS))
    def __len__(self):
        asked["len"] += 1
        raise RuntimeError("not known")

loader = Batches()
""",
    "wrapped": """
class Wrapped:
    def __init__(self, inner): self.inner = inner
    def __getattr__(self, name):
        asked[name] += 1
        return getattr(self.__dict__["inner"], name)
    def __iter__(self):
        for x in self.inner: yield x * 1.0
    def __len__(self):
        asked["len"] += 1
        return len(self.inner)

loader = Wrapped(torch.utils.data.DataLoader(Items(), batch_size=8))
""",
    "subclass": """
class Own(torch.utils.data.DataLoader):
    def __iter__(self):
        asked["iter"] += 1
        for x in super().__iter__(): yield x + 0.0
    def __len__(self):
        asked["len"] += 1
        return super().__len__()

loader = Own(Items(), batch_size=8)
""",
    "batch_sampler": """
class Sizes:
    def __iter__(self):
        asked["iter"] += 1
        place = 0
        for b in range(STEPS):
            size = 4 + b % 5
            yield list(range(place, place + size))
            place += size

loader = torch.utils.data.DataLoader(Items(), batch_sampler=Sizes())
""",
    "own_sampler": """
class Order(torch.utils.data.Sampler):
    def __iter__(self):
        asked["iter"] += 1
        return iter(torch.randperm(STEPS * 8, generator=generator).tolist())
    def __len__(self):
        asked["len"] += 1
        return STEPS * 8

loader = torch.utils.data.DataLoader(Items(), batch_size=8, sampler=Order())
""",
    "shuffled": "loader = torch.utils.data.DataLoader(Items(), batch_size=8, shuffle=True, generator=generator)",
    "global_shuffled": "loader = torch.utils.data.DataLoader(Items(), batch_size=8, shuffle=True, drop_last=True)",
    "unbatched": """
whole = [torch.stack([item(p) for p in range(b, b + 8)]) for b in range(STEPS)]
loader = torch.utils.data.DataLoader(whole, batch_size=None)
""",
    "nested": """
def collate(items):
    return torch.nested.nested_tensor([x[None].expand(1 + i % 3, -1) for i, x in enumerate(items)])

loader = torch.utils.data.DataLoader(Items(), batch_size=8, collate_fn=collate)
""",
    "own_batch": """
class Batch:
    __slots__ = ("x",)
    def __init__(self, items): self.x = torch.stack(items)
    def __len__(self):
        asked["len"] += 1
        raise TypeError("not a sequence")

loader = torch.utils.data.DataLoader(Items(), batch_size=8, collate_fn=Batch)
""",
    "read_once": """
class Once:
    def __iter__(self):
        asked["iter"] += 1
        if asked["iter"] > EPOCHS: raise RuntimeError("read more often than it may be")
        for b in range(STEPS): yield torch.stack([item(p) for p in range(8 * b, 8 * b + 8)])

loader = Once()
""",
    "stateful": """
class Walk(torch.utils.data.Dataset):
    place = 0
    def __len__(self):
        asked["len"] += 1
        return STEPS * 8
    def __getitem__(self, _):
        self.place += 1
        return item(self.place)

loader = torch.utils.data.DataLoader(Walk(), batch_size=8)
""",
}
"""What a script reads its batches from; `asked` counts what is asked of its own objects."""

STREAMS = {
    "full_disk": "os.dup2(os.open('/dev/full', os.O_WRONLY), 2)",
    "gone_reader": "ends = os.pipe(); os.dup2(ends[1], 2); os.close(ends[0]); os.close(ends[1])",
    "gone_reader_sigpipe": "signal.signal(signal.SIGPIPE, signal.SIG_DFL); ends = os.pipe(); os.dup2(ends[1], 2); "
    "os.close(ends[0]); os.close(ends[1])",
    "stuck_reader": "ends = os.pipe(); os.set_blocking(ends[1], False); os.dup2(ends[1], 2)\n"
    "with contextlib.suppress(BlockingIOError):\n    while True: os.write(2, b'x' * 4096)",
    "both_closed": "os.close(1); os.close(2)",
    "error_closed": "os.close(2)",
    "none": "sys.stderr = None",
    "both_none": "sys.stdout = sys.stderr = None",
    "closed_object": "sys.stderr = open(os.devnull, 'w'); sys.stderr.close()",
    "raises": "class Own:\n    def write(self, text): raise RuntimeError('not here')\n"
    "    def flush(self): raise RuntimeError('nor here')\n"
    "sys.stderr = sys.stdout = Own()",
    "narrow": "sys.stderr = open(os.devnull, 'w', encoding='ascii', errors='strict')",
    "read_only": "os.dup2(os.open(os.devnull, os.O_RDONLY), 2)",
    "redirected": "os.dup2(os.open(os.devnull, os.O_WRONLY), 1); os.dup2(1, 2)",
}
"""What becomes of standard error, and of standard output."""


def draw_outputs(draw: random.Random) -> Sketch:
    """A model whose output is of an unusual sort."""
    name = draw.choice(sorted(OUTPUTS))
    plain = draw.random() < 0.3
    body = f"""import dataclasses
from typing import NamedTuple
{draw_sizes(draw)}{OUTPUTS[name]}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net(WIDTH, DEPTH)

    def forward(self, x):
        return pack(self.net(x))

net = Model()
model = DDP(net{draw_options(draw)})
optimizer = {draw_optimizer(draw).format("net.parameters()")}
for step in range(STEPS):
    x = batch()
    {"model.eval(); unpack(model(x)); model.train()" if plain else "pass"}
    loss = far(unpack(model(x)), x)
    loss.backward()
    mark(step, loss, net.parameters())
    optimizer.step()
    optimizer.zero_grad()
finish(net.parameters())
"""
    return Sketch(body, [name])


def draw_loaders(draw: random.Random) -> Sketch:
    """Batches from a loader or an iterable of an unusual sort; the script counts what it is asked for."""
    name = draw.choice(sorted(LOADERS))
    text = LOADERS[name].replace(
        "{error}", draw.choice(("NotImplementedError", "ValueError", "OSError", "TypeError"))
    )
    read = {"nested": "x = x.to_padded_tensor(0.0).sum(1)", "own_batch": "x = x.x"}.get(name, "pass")
    epochs = 1 if name == "stateful" else draw.choice((1, 2))
    inside = draw.random() < 0.5 and name in ("nested", "own_batch")
    body = f"""import collections
{draw_sizes(draw)}
EPOCHS = {epochs}
asked = collections.Counter()

def item(place):
    return torch.sin(torch.arange(WIDTH) * (place % 97 + 1.0) + rank)

class Items(torch.utils.data.Dataset):
    def __len__(self):
        return STEPS * 8
    def __getitem__(self, place):
        return item(place)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net(WIDTH, DEPTH)

    def forward(self, x):
        {read if inside else "pass"}
        return self.net(x)

{text}
net = Model()
model = DDP(net{draw_options(draw)})
optimizer = {draw_optimizer(draw).format("net.parameters()")}
for epoch in range(EPOCHS):
    for step, x in enumerate(loader):
        if step == STEPS: break
        given = x
        {read}
        loss = far(model({"given" if inside else "x"}), x)
        loss.backward()
        mark(step, loss, net.parameters())
        optimizer.step()
        optimizer.zero_grad()
    tell("asked", *(f"{{name}}={{count}}" for name, count in sorted(asked.items())))
finish(net.parameters())
"""
    return Sketch(body, [name, f"epochs{epochs}"], knobs="loading")


def draw_stderr(draw: random.Random) -> Sketch:
    """Standard error, or output, is not what it was: before the first step, or in the middle."""
    name = draw.choice(sorted(STREAMS))
    spot = draw.choice((-1, 2, 10))
    change = "\n".join("    " + line for line in STREAMS[name].splitlines())
    body = f"""import signal
{draw_sizes(draw)}
def change():
{change}

net = Net(WIDTH, DEPTH)
model = DDP(net{draw_options(draw)})
optimizer = {draw_optimizer(draw).format("net.parameters()")}
if {spot} < 0:
    change()
for step in range(STEPS):
    if step == {spot}:
        change()
    x = batch()
    loss = far(model(x), x)
    loss.backward()
    mark(step, loss, net.parameters())
    optimizer.step()
    optimizer.zero_grad()
finish(net.parameters())
dist.barrier()
os._exit(0)
"""
    return Sketch(body, [name, f"spot{spot}"])


OBJECTS: dict[str, Callable[[random.Random], Sketch]] = {
    "outputs": draw_outputs,
    "loaders": draw_loaders,
    "stderr": draw_stderr,
}
