"""What a diagnosis finds of activations that are computed again in the backward pass. Pure functions."""

import re
from collections.abc import Iterator, Mapping

from advisor.protocol.answers.found import Found, make_found
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.nodes.cluster import spell_memory
from advisor.protocol.training.workload import Recomputed, WorkloadFacts

_BY_SCRIPT = {
    "checkpoint_sequential": ("functions(x)", "in place of checkpoint_sequential(functions, …, x)"),
    "checkpoint_wrapper": ("leave out checkpoint_wrapper(…)", "or apply_activation_checkpointing(…)"),
    "gradient_checkpointing": (
        "leave out model.gradient_checkpointing_enable()",
        "or, from transformers 5.23 on, model.activation_checkpointing_enable()",
    ),
}
_BY_CALL = ("block(x)", "in place of checkpoint(block, x)")


def name_trainers_argument(software: Mapping[str, str], seen: Recomputed) -> str:
    """Return the argument of transformers' Trainer in the version at hand, the newest where none is known.

    Empty where the script itself has activations computed again, which no argument changes. From 5.23 on it has a new
    name, and the old one is silently left unread where a script sets the new one.
    """
    if seen.by not in ("", "gradient_checkpointing"):
        return ""
    found = re.match(r"(\d+)\.(\d+)", software.get("transformers", ""))
    is_old = found is not None and (int(found[1]), int(found[2])) < (5, 23)
    return "gradient_checkpointing" if is_old else "activation_checkpointing"


def write_kept(seen: Recomputed) -> tuple[str, str]:
    """Return what a script writes to keep its activations, and in place of what."""
    return _BY_SCRIPT.get(seen.by, _BY_CALL)


def find_recomputed(left: dict[str, float], result: BlockResult, facts: WorkloadFacts) -> Iterator[Found]:
    """By its share of the first steps, whose pace is not that of later ones; what it takes is taken from backward."""
    seen, hint_s = facts.recomputed, facts.step_time_s_hint
    if not seen.per_step:
        return
    cost_s = seen.seconds * min(1.0, result.phases.total_s() / hint_s) if hint_s else seen.seconds
    cost_s = min(cost_s, left["backward_s"])
    left["backward_s"] -= cost_s
    yield make_found(
        "recomputation",
        cost_s,
        f"{seen.per_step:g} calls a step are computed again in the backward pass (activation checkpointing)"
        f"{_say_room(result, facts)}",
        f"{_write_remedy(facts)}; or unchanged: advisor tune races it (activation_checkpointing)",
        "calls of torch.utils.checkpoint in the first steps",
        seen.site,
    )


def _say_room(result: BlockResult, facts: WorkloadFacts) -> str:
    if not result.peak_memory_bytes or not result.room_bytes:
        return ""
    more = facts.recomputed.kept_bytes
    needs = f", kept they take about {spell_memory(more)}" if more else ""
    used, left = spell_memory(result.peak_memory_bytes), spell_memory(result.room_bytes)
    return f"{needs}; {used} of memory are in use, and {left} free"


def _write_remedy(facts: WorkloadFacts) -> str:
    argument = name_trainers_argument(facts.software, facts.recomputed)
    if argument and "transformers" in facts.software:
        return f"TrainingArguments(…, {argument}=False)"
    return " ".join(write_kept(facts.recomputed))
