"""`strategy.json`: the whole strategy as versioned JSON, which `advisor run` and every other format start from."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from pydantic import computed_field

from advisor.protocol.answers.advice import Interval, Provenance, Verdict
from advisor.protocol.base import Message, Value
from advisor.protocol.kinds import Allow, Effect
from advisor.protocol.knobs.catalogue import CATALOGUE, Catalogue, join_own
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.knobs.reach import read_typed
from advisor.protocol.training.own_knobs import OwnKnob
from advisor.protocol.training.settling import list_unset, list_variables
from advisor.protocol.training.workload import WorkloadFacts, WorkloadKind

_BUILT_IN = frozenset({"fuse_all_reduce_ops", "fuse_grad_size_in_MB"})
"""Knobs that a DistributedDataParallel of a static graph takes only when it is built."""
SCHEMA = "fleet-advisor/strategy"
VERSION = 1


class StrategyFile(Message):
    """The content of a `strategy.json`."""

    schema_name: str = SCHEMA
    """Always `fleet-advisor/strategy`."""
    version: int = VERSION
    """Grows when a field changes its meaning; new fields alone do not change it."""
    job_id: str
    job_name: str
    date: datetime
    """When the job finished (UTC)."""
    verdict: Verdict
    headline: str
    """The verdict in one sentence."""
    gain: Interval | None
    """The confirmed throughput ratio, of the best strategy tried where the verdict is not change; None when nothing was
    confirmed."""
    baseline_samples_per_s: float | None = None
    """Throughput of the script as it stood."""
    allowed: Allow
    """The highest rung the job allowed."""
    certificate: str = ""
    """Sentence: over how many steps and on how many ranks it left every bit; empty where the job did not ask."""
    effect: Effect
    """The rung the strategy stands on."""
    changes: Changes
    """Knobs that differ from the baseline; empty unless the verdict is change."""
    strategy: dict[str, Value]
    """A value for every knob."""
    baseline: dict[str, Value]
    """A value for every knob: the script as it stood."""
    provenance: dict[str, Provenance]
    """For every knob: measured, translated or carried."""
    cluster: str
    """The hardware in one phrase."""
    software: dict[str, str]
    """Versions that the advice is valid for."""
    kind: WorkloadKind = WorkloadKind.PYTORCH
    """What was tuned."""
    holds_for: WorkloadFacts | None = None
    """The model, its ranks and their hardware as they were measured."""

    own: tuple[OwnKnob, ...] = ()
    """The job's own knobs, which stand in its command, its environment and its files."""

    @cached_property
    def catalogue(self) -> Catalogue:
        """The knobs that the job knew."""
        return join_own(self.own)

    @computed_field
    def at_launch(self) -> Changes:
        """The part of the changes that has to stand when the ranks start."""
        return choose_at_launch(self.changes, self.holds_for, self.catalogue)

    @computed_field
    def launch_variables(self) -> dict[str, str]:
        """The environment variables that carry it there."""
        return {**self.catalogue.list_variables(self.changes), **list_variables(self.own, self.changes)}

    @computed_field
    def launch_unset(self) -> tuple[str, ...]:
        """The variables that are taken out of what the launch inherits."""
        return tuple(sorted(list_unset(self.own, self.changes)))

    @property
    def least_samples_per_s(self) -> float | None:
        """The lower end of the advised throughput; None where the file advises none."""
        if self.gain is None or self.baseline_samples_per_s is None or not self.changes:
            return None
        return self.baseline_samples_per_s * self.gain.low


def describe_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a `strategy.json`, which `docs/strategy.schema.json` publishes."""
    schema = StrategyFile.model_json_schema(mode="serialization")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"{SCHEMA}/{VERSION}",
        **schema,
        "title": "strategy.json of Fleet Advisor",
    }


def choose_at_launch(
    changes: Changes, holds_for: WorkloadFacts | None, catalogue: Catalogue = CATALOGUE
) -> Changes:
    """Return the part of the changes that has to stand when the ranks start."""
    is_static = holds_for is not None and holds_for.ddp.static_graph
    built_in = {name: value for name, value in changes.items() if is_static and name in _BUILT_IN}
    return Changes({**catalogue.keep_cold(changes), **built_in})


def choose_changes(
    changes: Mapping[str, Value],
    settings: Sequence[str],
    leave: Sequence[str],
    catalogue: Catalogue = CATALOGUE,
) -> Changes:
    """Return a strategy's changes with typed settings (`num_threads=1`) beside them, and without the knobs to leave.

    Raises ValueError, with a sentence, for what PyTorch ranks cannot be given.
    """
    chosen = dict(changes)
    for setting in settings:
        name, sign, typed = setting.partition("=")
        if name not in catalogue or not sign:
            wrong = catalogue.say_unknown([name]) if sign else "write KNOB=VALUE"
            raise ValueError(f"--set {setting}: {wrong}.")
        try:
            chosen[name] = read_typed(catalogue[name], typed)
        except ValueError as error:
            raise ValueError(f"--set {setting}: {error}.") from error
    if idle := [name for name in leave if name not in chosen]:
        raise ValueError(f"--leave {idle[0]}: the strategy does not set it.")
    kept = {name: value for name, value in chosen.items() if name not in leave}
    for name in kept:
        if name not in catalogue:
            raise ValueError(
                f"{name} is no knob that this version knows. Upgrade fleet-advisor, or pass --leave {name}."
            )
        if catalogue[name].carried:
            raise ValueError(
                f"{name} cannot be put in force in PyTorch: {catalogue[name].realised} Pass --leave {name}."
            )
    return Changes(kept)


def read_strategy_file(text: str) -> StrategyFile:
    """Return the content of a `strategy.json`.

    Raises ValueError (pydantic's, or ours with a sentence) when it is no such file or of a later version.
    """
    file = StrategyFile.model_validate_json(text)
    if file.schema_name != SCHEMA:
        raise ValueError(f"schema_name is {file.schema_name!r}, but a strategy file says {SCHEMA!r}.")
    if file.version > VERSION:
        raise ValueError(
            f"The strategy file has version {file.version}; this program reads up to {VERSION}. Upgrade it."
        )
    return file
