"""Ordinary DDP training of small models; writes every step's loss and the final parameters, bit for bit."""

import argparse
import contextlib
import faulthandler
import gc
import hashlib
import os
import sys
import time

import torch
import torch.distributed as dist
from placement import BACKEND, DEVICE
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

# Whoever waits for a training that hangs gives up after 120 s, and shows what it wrote.
faulthandler.dump_traceback_later(90)

parser = argparse.ArgumentParser()
parser.add_argument("--name", default="run")
parser.add_argument("--model", default="mlp")
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--autocast", action="store_true")
parser.add_argument("--static-graph", action="store_true")
parser.add_argument("--views", action="store_true")
parser.add_argument("--find-unused", action="store_true")
parser.add_argument("--keep-grads", action="store_true", help="zero_grad(set_to_none=False)")
parser.add_argument("--bucket-cap-mb", type=float)
parser.add_argument("--own-hook", action="store_true")
parser.add_argument("--evaluate-every", type=int, default=0)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--sleep", type=float, default=0.0)
parser.add_argument("--slow-from", type=int, default=0, help="from this step on batches come 40 ms later")
parser.add_argument("--slow-threads", type=int, default=0, help="sleep only while torch has so many threads")
parser.add_argument(
    "--slow-collector", action="store_true", help="sleep only while Python collects garbage itself"
)
parser.add_argument("--settle-at", type=int, default=0, help="from this step on no reducer can be rebuilt")
parser.add_argument("--drift-at", type=int, default=0, help="rank 1 changes a parameter after this step")
parser.add_argument("--adam", action="store_true")
parser.add_argument("--compile", choices=["outside", "inside", "around"], help="of DDP, or the whole step")
parser.add_argument("--break-threads", action="store_true", help="torch.set_num_threads fails from now on")
parser.add_argument("--stderr", choices=["full", "gone", "closed"], help="where it leads")
parser.add_argument("--break-outputs", action="store_true", help="whatever of ours looks at them fails")
parser.add_argument("--own-forward", action="store_true", help="of a subclass of DistributedDataParallel")
parser.add_argument("--forget", help="an attribute that DistributedDataParallel loses, as in another torch")
parser.add_argument("--capture-at", type=int, default=0, help="this step is recorded as a CUDA graph")
parser.add_argument(
    "--count-store", action="store_true", help="write how often the store was asked, step by step"
)
parser.add_argument("--tell-boundaries", action="store_true", help="write how many the runtime has looked at")
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument(
    "--digests", action="store_true", help="write a digest of model and optimizer in every step"
)
BATCH = 8


class OwnForward(DDP):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.EmbeddingBag(500, 16, sparse=True, mode="mean")
        self.head = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x):
        return self.head(self.items((x.abs() * 100).long() % 500))


class Branching(nn.Module):
    """Of its three branches another two are used in every step."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(64, 64), nn.Linear(64, 10)
        self.branches = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.step = 0

    def forward(self, x):
        self.step += 1
        x = self.into(x).relu()
        for place, branch in enumerate(self.branches):
            if place != self.step % 3:
                x = branch(x).relu()
        return self.out(x)


class Late(Branching):
    """All branches are used until step 25; then rank 0 leaves one out now and then, and all ranks another."""

    def forward(self, x):
        self.step += 1
        x = self.into(x).relu()
        for place, branch in enumerate(self.branches):
            left_out = (0, 1)[dist.get_rank() :] if self.step % 3 else (2,)
            if self.step < 25 or place not in left_out[:1]:
                x = branch(x).relu()
        return self.out(x)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.into = nn.Linear(8, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(32, 10)

    def forward(self, x):
        return self.out(self.body(self.into(x.view(x.shape[0], 8, 8))).mean(1))


def build(name):
    if name == "mlp":
        return nn.Sequential(
            *[m for _ in range(4) for m in (nn.Linear(64, 64), nn.ReLU())], nn.Linear(64, 10)
        )
    if name == "conv":
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3),
            nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(128, 10),
        )  # fmt: skip
    return {"recommender": Recommender, "transformer": Transformer, "branching": Branching, "late": Late}[
        name
    ]()


class Samples(Dataset):
    def __init__(self, size):
        generator = torch.Generator().manual_seed(1)
        self.x, self.y = (
            torch.randn(size, 64, generator=generator),
            torch.randint(10, (size,), generator=generator),
        )
        self.slow_from = size

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        if index >= self.slow_from:
            time.sleep(0.04 / BATCH)
        return self.x[index], self.y[index]


class CountedStore(dist.PrefixStore):
    """The runtime's view of the ranks' store; torch itself takes the class from elsewhere."""

    requests = 0

    def ask(name):
        original = getattr(dist.PrefixStore, name)

        def request(self, *arguments):
            CountedStore.requests += 1
            return original(self, *arguments)

        return request

    set, get, add, multi_get, delete_key, wait = map(
        ask, ("set", "get", "add", "multi_get", "delete_key", "wait")
    )


def scale_hook(state, bucket):
    tensor = bucket.buffer().div_(dist.get_world_size())
    return dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()[0])


def digest(model, optimizers):
    sha = hashlib.sha256()
    for _, tensor in sorted(model.state_dict().items()):
        sha.update(tensor.cpu().numpy().tobytes())
    for optimizer in optimizers:
        for state in optimizer.state_dict()["state"].values():
            for value in state.values():
                sha.update(
                    value.cpu().numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode()
                )
    return sha.hexdigest()


def write(name, what, text):
    with open(os.path.join(os.environ["OUT"], f"{name}.{what}.{dist.get_rank()}"), "a") as file:
        file.write(text + "\n")


def train(arguments):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = build(arguments.model).to(DEVICE)
    keywords = {} if arguments.bucket_cap_mb is None else {"bucket_cap_mb": arguments.bucket_cap_mb}
    if arguments.compile == "inside":
        model = torch.compile(model, backend="eager")
    ddp = (OwnForward if arguments.own_forward else DDP)(
        model,
        static_graph=arguments.static_graph,
        gradient_as_bucket_view=arguments.views,
        find_unused_parameters=arguments.find_unused,
        **keywords,
    )
    if arguments.own_hook:
        ddp.register_comm_hook(None, scale_hook)
    if arguments.model == "recommender":
        optimizers = [
            torch.optim.SparseAdam(list(model.items.parameters()), lr=0.01),
            torch.optim.SGD(model.head.parameters(), lr=arguments.lr, momentum=0.9),
        ]
    elif arguments.adam:
        optimizers = [torch.optim.Adam(model.parameters(), lr=0.001)]
    else:
        optimizers = [torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)]
    data = Samples(BATCH * world * arguments.steps * arguments.accumulate)
    if arguments.slow_from:
        data.slow_from = BATCH * world * arguments.slow_from
    loader = DataLoader(
        data, BATCH, sampler=DistributedSampler(data, shuffle=False), num_workers=arguments.workers
    )
    if arguments.count_store:
        dist.PrefixStore = CountedStore
    if arguments.forget:
        delattr(nn.parallel.DistributedDataParallel, arguments.forget)
    if arguments.break_threads:
        torch.set_num_threads = lambda number: 1 / 0
    if arguments.stderr == "full":
        os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
    elif arguments.stderr == "gone":
        reading, writing = os.pipe()
        os.dup2(writing, 2)
        os.close(reading)
        os.close(writing)
    elif arguments.stderr == "closed":
        os.close(1)
        os.close(2)
    if arguments.break_outputs:
        sys.modules["fleet_advisor_runtime.current"].current_runtime.runtime.models.await_backward = (
            lambda *_: 1 / 0
        )
    criterion = nn.CrossEntropyLoss()
    if arguments.compile == "outside":
        ddp = torch.compile(ddp, backend="eager")
    torch.manual_seed(rank)
    ddp.train()

    def learn(x, y):
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=arguments.autocast):
            output = ddp(x).float()
            loss = criterion(output, y) / arguments.accumulate
        loss.backward()
        return loss

    def update():
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=not arguments.keep_grads)

    if arguments.compile == "around":
        learn, update = (torch.compile(part, backend="eager") for part in (learn, update))
    if arguments.digests:
        model.register_forward_pre_hook(
            lambda *_: write(arguments.name, "digests", digest(model, optimizers))
        )
    if arguments.capture_at:
        torch.cuda.is_initialized, torch.cuda.is_current_stream_capturing = lambda: True, lambda: False
    for micro, (x, y) in enumerate(loader, 1):
        x, y = x.to(DEVICE), y.to(DEVICE)
        last = micro % arguments.accumulate == 0
        if arguments.capture_at == micro:
            torch.cuda.is_current_stream_capturing = lambda: True
            torch.cuda.synchronize = lambda *_: 1 / 0  # what CUDA makes of it while a stream is captured
        with contextlib.nullcontext() if last else ddp.no_sync():
            loss = learn(x, y)
        if not last:
            continue
        if (
            arguments.slow_threads in (0, torch.get_num_threads())
            and (gc.get_threshold()[0] < 100_000) >= arguments.slow_collector
        ):
            time.sleep(arguments.sleep)
        if rank == 1 and arguments.drift_at == micro // arguments.accumulate:
            next(model.parameters()).data.flatten()[0] += 0.001
        if arguments.settle_at == micro // arguments.accumulate:
            model[0].weight._in_backward_optimizers = []
        update()
        write(arguments.name, "losses", repr(loss.item()))
        if arguments.count_store:
            write(arguments.name, "requests", str(CountedStore.requests))
        if arguments.evaluate_every and (micro // arguments.accumulate) % arguments.evaluate_every == 0:
            ddp.eval()
            with torch.no_grad():
                ddp(x)
            time.sleep(0.05)
            ddp.train()
    torch.save(model.state_dict(), os.path.join(os.environ["OUT"], f"{arguments.name}.model.{rank}"))
    write(arguments.name, "final", digest(model, optimizers))
    if arguments.tell_boundaries:
        write(
            arguments.name,
            "boundaries",
            str(sys.modules["fleet_advisor_runtime.current"].current_runtime.runtime.models.step),
        )
    if arguments.compile:
        write(arguments.name, "frames", str(torch._dynamo.utils.counters["frames"]["total"]))


def main():
    dist.init_process_group(BACKEND)
    # Several runs in one launch, separated by "--then": the references of many tests cost one start-up.
    words = " ".join(sys.argv[1:]).split("--then")
    for run in words:
        train(parser.parse_args(run.split()))
    dist.barrier()  # gloo sometimes aborts a rank that leaves while another one still reduces
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
