"""What several checks launch: races, sizes of the training on a card and on a CPU, and results that must be there."""

from collections.abc import Mapping
from typing import Any

from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.results import BlockResult, RaceRules
from advisor.protocol.measured.trials import BlockPlan, RacePlan
from tests.gpu.bench import Bench, Machine, Trained
from tests.gpu.check import Judgement, NotPossible

TRAINING = "training.py"
SLOW_LINK = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
"""Variables with which two cards of a node talk as over a network."""
_SHORT: Mapping[str, Any] = {"warmup_steps": 3, "min_steps": 20, "max_steps": 20, "target_s": 0.01}


class LaunchFailed(Exception):
    """A launch did not come to what its check needs; the text holds its end."""


def race(arms: Mapping[str, Mapping[str, Value]], **rules: Any) -> RacePlan:
    """Return a short race; the arms' overrides by their block ids."""
    of_all = RaceRules(**{**_SHORT, **rules})
    return RacePlan(
        arms=tuple(
            BlockPlan(block_id=name, trial_number=number, overrides=Changes(overrides), rules=of_all)
            for number, (name, overrides) in enumerate(arms.items())
        )
    )


REST = race({"rest": {}}, warmup_steps=10**6)
"""A race that never comes to its timed steps: the script goes on to its own end."""


def count_options(machine: Machine, on_card: Mapping[str, int], on_cpu: Mapping[str, int]) -> list[object]:
    """Return options with numbers for a check's script."""
    chosen = on_card if machine.has_card else on_cpu
    return [word for name, value in chosen.items() for word in (f"--{name}", value)]


def need(trained: Trained, *arms: str) -> list[BlockResult]:
    """Return the arms' results; raises LaunchFailed where one is missing."""
    if missing := [arm for arm in arms if arm not in trained.results]:
        raise LaunchFailed(f"{', '.join(missing)} of the launch was not measured; {trained.describe_end()}")
    return [trained.results[arm] for arm in arms]


def need_card(bench: Bench) -> None:
    """Raise NotPossible on a CPU."""
    if not bench.machine.has_card:
        raise NotPossible("It is about a card, and the checks run on a CPU.")


def expect_in_force(judgement: Judgement, result: BlockResult, *knobs: str) -> None:
    """Every one of the knobs was consumed in a block."""
    for knob in knobs:
        why = result.not_consumed.get(knob) or result.relaunch_needed or "nothing said that it was"
        said = result.consumed.get(knob, "")
        judgement.expect(
            knob in result.consumed, f"{knob}: {said}" if said else "", f"{knob} was not in force: {why}"
        )
