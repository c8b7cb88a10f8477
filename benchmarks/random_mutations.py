"""Are faults of levers noticed? Some are put in by hand, and random trainings run under each until it shows.

    python benchmarks/random_mutations.py [--most 8] [--output docs/results/random_runs.md]

Each fault is a change of the runtime in the ranks' own memory. Of the kinds of scripts that it concerns seeds are run
one after another, each also without the fault, until the comparison of `random_runs.py` finds a difference, or the
product itself says that a setting which was in force without the fault is not. A rank starts by way of this file.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import re
import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LAUNCH = Path(__file__).resolve().parents[1] / "agent" / "runtime" / "launch.py"
_FIRST_SEED = 5000
_INVALID = "the fault could not be put in"


def _load(name: str) -> Any:
    return importlib.import_module(f"fleet_advisor_runtime.{name}")


def _wrap(owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Put `change(original, *arguments)` in a function's place, also where another module holds it by name."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def changed(*given: Any, **named: Any) -> Any:
        return change(original, *given, **named)

    setattr(owner, name, changed)
    for module in list(sys.modules.values()):
        if (
            getattr(module, "__name__", "").startswith("fleet_advisor_runtime")
            and vars(module).get(name) is original
        ):
            setattr(module, name, changed)


def _after_rebuild(act: Callable[[Any], None]) -> None:
    def change(original: Any, ddp: Any, *given: Any, **named: Any) -> Any:
        found = original(ddp, *given, **named)
        act(ddp)
        return found

    _wrap(_load("levers.reduction.reducer"), "rebuild_reducer", change)


def _in_helper(choose: Callable[[Any], Any]) -> None:
    """Another list of parameters for every reducer but a model's first."""
    from torch.nn.parallel import DistributedDataParallel

    def change(original: Any, ddp: Any, parameters: Any, sparse: Any, names: Any, static: Any) -> Any:
        if "was_built" in vars(ddp):
            places = choose(parameters)
            parameters, sparse = [parameters[i] for i in places], [sparse[i] for i in places]
            names = {new: names[old] for new, old in enumerate(places) if old in names}
        object.__setattr__(ddp, "was_built", True)
        return original(ddp, parameters, sparse, names, static)

    _wrap(DistributedDataParallel, "_ddp_init_helper", change)


def rebuild_of_trainable() -> None:
    """A rebuilt reducer takes only the parameters that require a gradient at this moment."""
    frozen: set[int] = set()

    def note(original: Any, ddp: Any, *given: Any, **named: Any) -> Any:
        frozen.clear()
        frozen.update(id(p) for p in ddp.module.parameters() if not p.requires_grad)
        return original(ddp, *given, **named)

    _wrap(_load("levers.reduction.reducer"), "rebuild_reducer", note)
    _in_helper(lambda parameters: [i for i, p in enumerate(parameters) if id(p) not in frozen])


def order_by_rank() -> None:
    """A rebuilt reducer has another order of parameters on the last rank."""
    import torch.distributed as dist

    def choose(parameters: Any) -> list[int]:
        is_last = dist.get_rank() == dist.get_world_size() - 1
        return sorted(range(len(parameters)), reverse=is_last)

    _in_helper(choose)


def last_bucket_dropped() -> None:
    """The hook does not sum the last bucket."""
    import torch

    def change(original: Any, self: Any, bucket: Any) -> Any:
        if not bucket.is_last():
            return original(self, bucket)
        future: Any = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    _wrap(_load("levers.reduction.reduction_hook").BucketReduction, "reduce", change)


def average_of_one_more() -> None:
    """The hook averages the first bucket over one rank too many."""

    def change(original: Any, self: Any, bucket: Any) -> Any:
        if bucket.index() == 0:
            bucket.buffer().mul_(2.0 / 3.0)
        return original(self, bucket)

    _wrap(_load("levers.reduction.reduction_hook").BucketReduction, "reduce", change)


def search_left_off() -> None:
    """A rebuilt reducer no longer searches for unused parameters."""
    _after_rebuild(lambda ddp: setattr(ddp, "find_unused_parameters", False))


def no_sync_ignored() -> None:
    """After a rebuild no_sync() is without effect."""
    _after_rebuild(lambda ddp: setattr(ddp, "no_sync", contextlib.nullcontext))


def own_hook_lost() -> None:
    """A rebuilt reducer does not get the script's own communication hook back."""

    def change(original: Any, ddp: Any, state: Any, hook: Any) -> Any:
        if "reduce_bucket" in hook.__qualname__:
            original(ddp, state, hook)

    _wrap(_load("levers.reduction.reducer"), "_register", change)


def buffers_stay() -> None:
    """After a rebuild the first rank's buffers are not broadcast."""
    _after_rebuild(lambda ddp: setattr(ddp, "broadcast_buffers", False))


def merge_forgets() -> None:
    """Gradient merge leaves out the gradients of one step of each update."""

    def change(original: Any, self: Any) -> float:
        return 0.0 if self._step > 1 and self._step % self.period == 1 else float(original(self))

    _wrap(_load("levers.reduction.gradient_merge").GradientMerge, "before_backward", change)


def half_averaged() -> None:
    """Local SGD averages every second parameter only."""

    def change(original: Any, tensors: Any) -> Any:
        return original(list(tensors)[::2])

    _wrap(_load("levers.reduction.local_sgd"), "_split", change)


def hook_raises() -> None:
    """What counts a forward's samples raises on one rank."""
    import torch.distributed as dist

    def change(original: Any, *given: Any) -> Any:
        if dist.is_initialized() and dist.get_rank() == 1:
            raise ValueError("not countable")
        return original(*given)

    _wrap(_load("observe.samples").SampleCount, "note_forward", change)


@dataclass(frozen=True)
class Mutation:
    """One fault, and where it must show."""

    change: Callable[[], None]
    kinds: tuple[str, ...]
    settings: dict[str, str]
    needs: str = ""
    """What the script has to have."""

    @property
    def name(self) -> str:
        """As the table calls it."""
        return self.change.__name__


_SMALL = {"fuse_grad_size_in_MB": "0.0625"}
_HOOK = {"sync_nccl_allreduce": "on", "fuse_all_reduce_ops": "off"}
MUTATIONS = (
    Mutation(rebuild_of_trainable, ("unfreeze", "toggle", "adapters"), _SMALL),
    Mutation(order_by_rank, ("ledger", "outputs"), _SMALL),
    Mutation(last_bucket_dropped, ("outputs", "ledger"), _HOOK),
    Mutation(average_of_one_more, ("outputs", "ledger"), _HOOK),
    Mutation(search_left_off, ("unfreeze", "toggle"), _SMALL),
    Mutation(no_sync_ignored, ("modes", "ledger"), _SMALL),
    Mutation(own_hook_lost, ("modes",), _SMALL, "own_hook"),
    Mutation(buffers_stay, ("modes",), _SMALL, "buffers"),
    Mutation(merge_forgets, ("ledger",), {"gradient_merge": "on", "gradient_merge_k_steps": "2"}),
    Mutation(half_averaged, ("ledger",), {"localsgd": "on", "localsgd_k_steps": "2"}),
    Mutation(hook_raises, ("outputs",), _SMALL),
)


def be_rank(name: str, words: list[str]) -> None:
    """Start the script as `launch.py` does, with one fault in the runtime."""
    runpy.run_path(str(_LAUNCH))["load_runtime_package"]()
    _load("runtime")
    try:
        next(found for found in MUTATIONS if found.name == name).change()
    except Exception as error:
        sys.stderr.write(f"{_INVALID}: {error!r}\n")
        raise
    _load("inject.session").run(words)


def find_out(mutation: Mutation, runner: Any, most: int) -> tuple[str, int]:
    """What caught it, and after how many seeds."""
    from dataclasses import replace

    from random_cases import make_case

    words = [str(Path(__file__).resolve()), mutation.name]
    count, seed = 0, _FIRST_SEED
    while count < most:
        seed += 1
        case = make_case(seed, mutation.kinds[seed % len(mutation.kinds)])
        if mutation.needs and mutation.needs not in case.features:
            continue
        count += 1
        case = replace(case, settings=mutation.settings)
        changed = runner.run(seed, case, words)
        if changed.under is not None and _INVALID in changed.under.log:
            return f"{_INVALID}: {changed.under.log.split(_INVALID)[1].splitlines()[0]}", count
        right = runner.run(seed, case)
        if right.fault or right.under is None:
            continue  # what fails without the fault says nothing of it
        if changed.fault:
            return f"comparison, {case.kind}: {changed.fault}", count
        before, after = _list_refused(right.under.log), _list_refused(changed.under.log)
        if more := [sentence for sentence in after if sentence not in before]:
            return f"the product, {case.kind}: {more[0]}", count
    return "NOT CAUGHT", most


def _list_refused(log: str) -> list[str]:
    """The product's sentences on settings that are not in force."""
    sentences = re.findall(
        r"^fleet advisor: +(.*(?:NOT in force|not in force|goes on by itself|not proved).*)", log, re.M
    )
    return [re.sub(r"\d+", "…", sentence) for sentence in sentences]


def main() -> None:
    """Run all, print a table."""
    if len(sys.argv) > 2 and sys.argv[1] in {mutation.name for mutation in MUTATIONS}:
        be_rank(sys.argv[1], sys.argv[2:])
        return
    from random_runs import Runner

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--most", type=int, default=8, help="seeds for each fault")
    parser.add_argument("--only", nargs="*", help="names of faults")
    parser.add_argument("--output", type=Path, help="add the command and the table to this page")
    arguments = parser.parse_args()
    runner = Runner()
    rows = ["| fault put in | seeds | caught by |", "| --- | --- | --- |"]
    print("\n".join(rows), flush=True)
    for mutation in MUTATIONS:
        if arguments.only and mutation.name not in arguments.only:
            continue
        caught, seeds = find_out(mutation, runner, arguments.most)
        said = (mutation.change.__doc__ or "").rstrip(".")
        rows.append(f"| {said} | {seeds} | {caught.replace('|', '/')[:160]} |")
        print(rows[-1], flush=True)
    runner.close()
    if arguments.output:
        with arguments.output.open("a") as page:
            page.write("\n" + "\n".join(rows) + "\n")
    sys.exit(1 if any("NOT CAUGHT" in row or _INVALID in row for row in rows) else 0)


if __name__ == "__main__":
    main()
