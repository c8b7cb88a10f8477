"""Every hot knob in this environment's torch: what the runtime says of it, and what the script itself sees.

`python -m tests.releases.trials FILE [KNOB …]` writes what it found as JSON. One launch for each knob, on two forked
ranks (four where that shows more); a launch without a strategy says what the script sees and computes by itself.
"""

import json
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agent.production.plan import make_plan
from agent.runtime import private_torch
from tests.architecture.torch_sources import find_wrong_declarations
from tests.distributed.runtime.fake_agent import launch
from tests.distributed.runtime.forked_ranks import RankForge

WITNESS = Path(__file__).with_name("witness.py")
COMPUTED = {"loss", "parameters"}
"""What the script sees that says nothing of a setting by itself."""
SLOWEST_S = 400.0
"""What compiling takes at most, on a busy machine."""
OPTIONS = ("--sharded", "--find-unused", "--norm", "--accumulate", "--checkpointed")
"""Of the script's, those that make it another training."""
OF_ANOTHER = re.compile(r"\btorch \d+\.\d|\b[Tt]his torch\b")
"""A refusal because of the release."""
LAST = 8
"""Steps that are looked at: the last ones, when everything is in force."""
Seen = list[list[dict[str, Any]]]
"""Of each rank, what it saw in each step."""


@dataclass(frozen=True)
class Trial:
    """A knob's value, what has to be set beside it, and the script's options."""

    knob: str
    value: object
    beside: Mapping[str, object]
    shows: Mapping[str, object]
    """What the script itself sees of it, and the value that has to be there (None: another one than by itself). Empty:
    a script sees nothing of it."""
    words: tuple[str, ...] = ()
    bits: bool = True
    """Whether every loss and parameter has to be the script's own: not where sums are taken in another order."""
    ranks: int = 2
    refusable: bool = False
    """Whether a refusal is right: the script has all that other knobs need, so that theirs is a fault."""


def _list_trials() -> list[Trial]:
    half, ladder = {"fp16_allreduce": True}, {"use_hierarchical_allreduce": True}
    sharded, long = ("--sharded",), ("--steps", "120")
    readers, pairs = {"loader_num_workers": 2}, {"hierarchical_allreduce_inter_nranks": 2}
    small = {"fuse_grad_size_in_MB": 0.0625, "last_comm_group_size_MB": 0.0625}
    return [
        Trial("fuse_all_reduce_ops", False, {}, {"buckets": None}),
        Trial("fuse_grad_size_in_MB", 0.0625, {"last_comm_group_size_MB": 0.0625}, {"buckets": None}),
        Trial("last_comm_group_size_MB", 0.0625, {}, {"buckets": None}),
        Trial("fuse_grad_size_in_TFLOPS", 2, {}, {"buckets": None}),
        Trial("bucket_cap_mb_list", "0.01+0.02", {}, {"buckets": None}),
        Trial("batched_grad_copy", True, {}, {"together": True}),
        Trial("find_unused_parameters", False, {}, {"searches": False}, ("--find-unused",)),
        Trial("broadcast_buffers", False, {}, {"sends_buffers": False}),
        Trial("defer_gradient_sync", True, {}, {"ops": None}, ("--accumulate",), bits=False),
        Trial("nccl_comm_num", 2, small, {"ways": None}),
        Trial("sync_nccl_allreduce", True, {}, {"ops": None}),
        Trial("use_hierarchical_allreduce", True, pairs, {"ops": None}, bits=False, ranks=4),
        Trial("hierarchical_allreduce_inter_nranks", 2, ladder, {"ops": None}, bits=False, ranks=4),
        Trial("hierarchical_allreduce_gloo_between", True, {**ladder, **pairs}, {"ops": None}, bits=False, ranks=4),
        Trial("fp16_allreduce", True, {}, {"gradients": "float16"}, bits=False),
        Trial("fp16_allreduce_dtype", "bf16", half, {"gradients": "bfloat16"}, bits=False),
        Trial("localsgd", True, {"localsgd_k_steps": 4}, {"ranks apart": None}, bits=False),
        Trial("localsgd_k_steps", 2, {"localsgd": True}, {"ranks apart": None}, bits=False),
        Trial("adaptive_localsgd", True, {"adaptive_localsgd_init_k_steps": 2}, {"ranks apart": None}, bits=False),
        Trial("adaptive_localsgd_init_k_steps", 4, {"adaptive_localsgd": True}, {"ranks apart": None}, bits=False),
        Trial("gradient_merge", True, {"gradient_merge_k_steps": 2}, {"updated": None}, bits=False),
        Trial("gradient_merge_k_steps", 3, {"gradient_merge": True}, {"updated": None}, bits=False),
        Trial("amp", True, {}, {"format": "torch.bfloat16"}, bits=False),
        Trial("amp_dtype", "fp16", {"amp": True}, {"format": "torch.float16"}, bits=False),
        Trial("dgc", True, {"dgc_rank": 1}, {"low_rank": True}, bits=False),
        Trial("dgc_rank", 2, {"dgc": True}, {"low_rank": True}, bits=False),
        Trial("num_threads", 2, {}, {"threads": 2}),
        Trial("activation_checkpointing", False, {}, {"calls": 4}, ("--checkpointed",)),
        Trial("activation_checkpointing", False, {}, {"calls": 4}, ("--checkpointed", "--sharded"), ranks=4),
        Trial("sync_batch_norm", True, {}, {}, ("--norm",), bits=False, refusable=True),
        Trial("fuse_all_optimizer_ops", True, {}, {"ops": None}, bits=False),
        Trial("fuse_elewise_add_act_ops", True, {}, {"compiled": True}, bits=False),
        Trial("fuse_bn_act_ops", True, {}, {"compiled": True}, ("--norm",), bits=False),
        Trial("num_iteration_per_drop_scope", 7, {}, {"collects_after": None}),
        Trial("micro_batches", 2, {}, {"rows": 4}, ("--unhooked",), bits=False),
        Trial("batch_size_multiple", 2, {}, {"rows": 16}, long, bits=False),
        Trial("loader_num_workers", 2, {}, {"children": 2}, long),
        Trial("loader_prefetch_factor", 4, readers, {}, long),
        Trial("loader_persistent_workers", True, readers, {}, long),
        Trial("sharding_stage", 2, {}, {"gathered": None}, sharded, ranks=4),
        Trial("sharding_gather_ranks", 2, {}, {"gathered": None}, sharded, ranks=4),
        Trial("sharding_forward_prefetch", 2, {}, {}, sharded, ranks=4),
        Trial("sharding_backward_prefetch", 2, {}, {}, sharded, ranks=4),
        Trial("sharding_separate_reduction", True, {}, {"ways": None}, sharded, ranks=4),
        Trial("sharding_reduce_buffers", 4, {}, {}, sharded, ranks=4),
        Trial("sharding_group_memory", True, {}, {}, sharded, ranks=4, refusable=True),
        Trial("fp16_allreduce", True, {}, {"gradients": "float16"}, sharded, bits=False, ranks=4),
    ]  # fmt: skip


FORGE = RankForge(loads_runtime=True)
TRIALS = _list_trials()


def name_trial(trial: Trial) -> str:
    """Its key on the page."""
    return " ".join((trial.knob, *(word for word in trial.words if word in OPTIONS)))


def train(folder: Path, words: tuple[str, ...], ranks: int, settings: Mapping[str, object]) -> dict[str, Any]:
    """One training; what was said of the settings, and what each rank saw in each step."""
    folder.mkdir()
    report = folder / "report.json"
    variables = {}
    if settings:
        plan = make_plan(None, [f"{knob}={value}" for knob, value in settings.items()], ())
        variables = plan.build_environment({}, report, None)
    session = launch(
        folder,
        [str(WITNESS), *words],
        variables=variables,
        patched=bool(settings),
        ranks=ranks,
        timeout_s=SLOWEST_S,
        forge=FORGE,
    )
    seen = [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in (folder / f"seen.{rank}" for rank in range(ranks))
        if path.exists()
    ]
    told = json.loads(report.read_text()) if report.exists() else {"in_force": {}, "missing": {}}
    return {"code": session.code, "log": session.log[-3000:], "told": told, "seen": seen}


def judge(trial: Trial, alone: dict[str, Any], under: dict[str, Any]) -> dict[str, Any]:
    """What is said of the knob, what the script saw of it, and whether it computed the same bits."""
    if under["code"] or not under["seen"] or len(under["seen"][0]) < LAST:
        return {"state": "broken", "sentence": under["log"]}
    proof = under["told"]["in_force"].get(trial.knob)
    sentence = proof or under["told"]["missing"].get(trial.knob)
    if sentence is None:
        return {"state": "broken", "sentence": f"Nothing was said of it. {under['log']}"}
    state = "in force" if proof else "absent" if OF_ANOTHER.search(sentence) else "refused"
    if state == "refused" and not trial.refusable:
        state = "broken"
    differing = _differ(alone["seen"], under["seen"])
    if proof and not all(
        _is_seen(name, value, differing, under["seen"]) for name, value in trial.shows.items()
    ):
        state = "silent"
    found: dict[str, Any] = {
        "state": state, "sentence": sentence, "seen": sorted(differing), "shown": bool(trial.shows)
    }  # fmt: skip
    if trial.bits:
        found["same_bits"] = all(
            [(step["loss"], step["parameters"]) for step in own]
            == [(step["loss"], step["parameters"]) for step in ours]
            for own, ours in zip(alone["seen"], under["seen"], strict=True)
        )
    return found


def _differ(alone: Seen, under: Seen) -> set[str]:
    """Facets in which the last steps differ from those without a strategy, and whether ranks train apart."""
    found = set()
    for own, ours in zip(alone, under, strict=True):
        for first, second in zip(own[-LAST:], ours[-LAST:], strict=True):
            found |= {name for name in first if name not in COMPUTED and first[name] != second.get(name)}
    parameters = [
        {rank[place]["parameters"] for rank in under if "buckets" in rank[place]} for place in range(-LAST, 0)
    ]
    return found | ({"ranks apart"} if any(len(each) > 1 for each in parameters) else set())


def _is_seen(name: str, value: object, differing: set[str], seen: Seen) -> bool:
    if value is None:
        return name in differing
    return all(step.get(name) == value for rank in seen for step in rank[-LAST:])


def main(output: Path, only: list[str]) -> None:
    """Run all, or those of some knobs only, and write after each."""
    sources = Path(torch.__file__).parents[1]
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "names": {
            "asked": len(private_torch.ALL),
            "wrong": find_wrong_declarations(sources, torch.__version__),
        },
        "knobs": json.loads(output.read_text())["knobs"] if only and output.exists() else {},
    }
    with tempfile.TemporaryDirectory() as place:
        alone: dict[object, dict[str, Any]] = {}
        for number, trial in enumerate(each for each in TRIALS if not only or each.knob in only):
            how = trial.words, trial.ranks
            if how not in alone:
                alone[how] = train(Path(place, f"alone-{number}"), *how, {})
            if alone[how]["code"]:
                why = alone[how]["log"].strip().splitlines()[-1]
                last = {"state": "not tried", "sentence": f"The script fails by itself: {why}"}
            else:
                under = train(Path(place, str(number)), *how, {**trial.beside, trial.knob: trial.value})
                last = judge(trial, alone[how], under)
            found["knobs"][name_trial(trial)] = last
            output.write_text(json.dumps(found, indent=1))
            print(
                f"{name_trial(trial)}: {last['state']} {last.get('seen')} {last.get('same_bits', '')}",
                flush=True,
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
