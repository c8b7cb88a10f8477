"""The tuning job: what is asked for, who has signed it, and where it stands."""

import re
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Literal, get_args

from pydantic import (
    AfterValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from advisor.protocol.base import Message, Spec, Value
from advisor.protocol.kinds import Allow
from advisor.protocol.knobs.catalogue import CATALOGUE, Catalogue, join_own
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.knobs.combinations import refuse_only_todays
from advisor.protocol.knobs.in_script import fit_to_script
from advisor.protocol.knobs.reach import refuse_senseless_own, refuse_unknown_knobs
from advisor.protocol.nodes.cluster import Cluster, LabelKey, Labels, Pool
from advisor.protocol.nodes.testbed import Testbed
from advisor.protocol.standing import Standing
from advisor.protocol.states import JobState as JobState
from advisor.protocol.states import Stage as Stage
from advisor.protocol.training.workload import SAMPLES_PER_S, Secret, Workload, WorkloadFacts, WorkloadKind

NAMESPACE = "fleet-advisor-job"
"""What a signature is for (`ssh-keygen -Y sign -n`): one that was made for anything else is none here."""


class Signature(Spec):
    """What the owner of a job signed, and the signature."""

    statement: Secret = Field(repr=False)
    """A `Statement` as JSON. It holds the job's environment, so only the agents may read it."""
    signature: str = Field(min_length=1, max_length=20_000)
    """The signature of the statement's very characters, as `ssh-keygen -Y sign` writes it."""


class Budget(Spec):
    """What a job may spend. What the verdict needs is reserved before the search gets any."""

    max_trials: int = Field(default=24, ge=1, le=500)
    """Strategies raced in the search; those of the trimming and the verdict are not counted."""
    max_seconds: float = Field(default=1800, gt=0)
    """Wall time of all sessions together, in seconds."""
    max_device_hours: float | None = Field(default=None, gt=0)
    """Device-hours (ranks on CPU nodes) of all sessions together; None sets no limit."""


class Measurement(Spec):
    """How long an arm of a race lasts."""

    warmup_steps: int = Field(default=5, ge=1, le=1000)
    """Steps of an arm before its first timed one."""
    min_steps: int = Field(default=20, ge=5, le=10_000)
    """Fewest timed steps of an arm; fewer where steps are so slow that a budget holds no other race."""
    max_steps: int = Field(default=200, ge=5, le=100_000)
    """Most timed steps of an arm in the search; the verdict's races last as long as planned."""
    block_s: float = Field(default=3.0, gt=0, le=600)
    """Seconds of timed steps that an arm of the search aims at, within those limits."""


class Continuation(Spec):
    """What a job that has ended is given beyond its budget; it goes on where it stood."""

    more_seconds: float = Field(gt=0)
    """Wall time to add to `budget.max_seconds`, in seconds."""
    more_trials: int = Field(default=0, ge=0, le=500)
    """Strategies to add to `budget.max_trials`."""


OptunaSampler = Literal[
    "TPESampler",
    "GPSampler",
    "CmaEsSampler",
    "NSGAIISampler",
    "NSGAIIISampler",
    "QMCSampler",
    "RandomSampler",
]
"""Optuna's samplers, by their names."""
HUB = "hub:"
"""Before the name of a sampler of OptunaHub, such as hub:auto_sampler."""


def _check_sampler(name: str) -> str:
    known = get_args(OptunaSampler)
    if name and name not in known and not re.fullmatch(rf"{HUB}[a-z0-9_]{{1,64}}", name):
        raise ValueError(f"give one of {', '.join(known)}, or {HUB} and a package of OptunaHub's samplers")
    return name


class Priority(StrEnum):
    """Which of the jobs that wait for agents come first."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
    """For administrators to give."""

    @property
    def rank(self) -> int:
        """Larger for what comes first."""
        return list(Priority).index(self)


class Prioritisation(Spec):
    """What a job's place among those that wait is changed to."""

    priority: Priority
    """Its priority from now on."""


class JobSpec(Spec):
    """A tuning job as its owner writes it."""

    name: str = Field(default="", max_length=100)
    """A name for people; made from the script's name when empty."""
    labels: Labels = Field(default_factory=dict)
    """Words of its owner to find it by, such as a project or a ticket; they change nothing else."""
    priority: Priority = Priority.NORMAL
    """Jobs of a higher one get agents first: low, normal or high, which only an administrator gives."""
    workload: Workload
    """What is trained."""
    nodes: int = Field(default=1, ge=1, le=1024)
    """Agents that hold a session together."""
    pool: Pool = ""
    """The pool whose nodes it is measured on; empty takes nodes of no pool."""
    needs: Labels = Field(default_factory=dict)
    """Labels that each of its nodes must have, with these values."""
    within: LabelKey | None = None
    """A label, such as `rack`, that all nodes of a gang must have with one value. None: nodes of one `rack` are taken
    where one has enough of them, and others where none has."""
    mixed_gpus: bool = False
    """Whether a gang may hold nodes with different GPUs."""
    testbed: Testbed | None = None
    """Measure on this testbed's agents only; None means real nodes. It has as many nodes as the job."""
    allow: Allow = Allow.EXACT
    """The highest rung the verdict may stand on: exact, numeric or convergence; or bitwise, which advises only exact
    strategies that were certified to leave parameters, buffers and optimizer states bit for bit as they are."""
    knobs: tuple[str, ...] = ()
    """Knobs to search; empty means every knob that can matter."""
    freeze: tuple[str, ...] = ()
    """Knobs to leave at the baseline."""
    verify: Changes = Changes()
    """Only hold this strategy against the script as it stands, and search nothing; empty searches."""
    values: dict[str, tuple[Value, ...]] = Field(default_factory=dict)
    """The only values to try of a knob; the baseline's own always counts. Knobs not named take the catalogue's."""
    budget: Budget = Budget()
    """What may be spent."""
    measurement: Measurement = Measurement()
    """How long an arm of a race lasts."""
    min_gain: float = Field(default=0.01, ge=0, lt=1)
    """Smallest gain worth recommending, as a fraction of the baseline's throughput."""
    error: float = Field(default=0.05, gt=0, le=0.05)
    """Error of the verdict on both sides: a change that is none is advised with half of this probability. A lab gives
    each of its races a part of its own."""
    price_per_hour: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """What all that the training runs on costs an hour, in any currency: the answer then says what a million samples
    cost. None: it is not told."""
    from_checkpoint: bool = False
    """The command resumes a training from a checkpoint in its middle, by the script's own option: only then can a
    convergence knob be advised, because at the start of a training a longer interval does no harm yet."""
    loss_tolerance: float = Field(default=0.02, ge=0, lt=1)
    """Loss at equal samples that a numeric or convergence knob may cost, as a fraction of the loss's drop."""
    seed: int = Field(default=0, ge=0)
    """Seed of the search; the same seed and history give the same next suggestion."""
    sampler: Annotated[str, AfterValidator(_check_sampler)] = ""
    """One of Optuna's samplers that proposes the strategies, by the name of its class, or hub:NAME, a package of
    OptunaHub's where the server's owner allows those; empty: the advisor's own search.
    Rules of thumb come first, and races and the verdict are the same."""
    session_timeout_s: float = Field(default=3600, gt=0)
    """Longest life of one session, in seconds."""
    hang_timeout_s: float | None = Field(default=None, gt=0)
    """Longest time a rank may go without a step before its session is ended as hung. None: 120 s, in a short job a
    sixth of its budget, and 20 s at least."""

    signed: Signature | None = None
    """Its owner's signature, for agents that start signed jobs only; `advisor submit --sign` makes it."""

    @property
    def patience_s(self) -> float:
        """`hang_timeout_s`, or what stands for it."""
        if self.hang_timeout_s is not None:
            return self.hang_timeout_s
        # A command that is not torch's says nothing until its first line, however long it loads.
        short = self.workload.kind is WorkloadKind.PYTORCH
        return max(20.0, min(120.0, self.budget.max_seconds / 6.0)) if short else 120.0

    @cached_property
    def catalogue(self) -> Catalogue:
        """The knobs that this job knows: Fleet's, and its own."""
        return join_own(self.workload.own)

    @field_validator("knobs", "freeze")
    @classmethod
    def _refuse_unknown_knobs(cls, names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        known = _catalogue_so_far(info)
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ValueError(known.say_unknown(unknown))
        return names

    @field_validator("verify")
    @classmethod
    def _parse_strategy(cls, changes: Changes, info: ValidationInfo) -> Changes:
        known = _catalogue_so_far(info)
        unknown = [name for name in changes if name not in known]
        if unknown:
            raise ValueError(f"verify names {known.say_unknown(unknown)}")
        return known.parse(changes)

    @model_validator(mode="after")
    def _refuse_verifying_what_is_not_allowed(self) -> "JobSpec":
        effect = self.catalogue.effect_of(self.verify)
        if effect.rank > self.allow.rank:
            raise ValueError(
                f"verify holds a strategy of the {effect.value} rung and allow is {self.allow.value}: "
                f"allow {effect.value}"
            )
        return self

    @model_validator(mode="after")
    def _refuse_what_cannot_be_certified(self) -> "JobSpec":
        if self.allow is not Allow.BITWISE:
            return self
        if self.workload.kind is not WorkloadKind.PYTORCH:
            raise ValueError(
                f"allow is bitwise and the workload's kind is {self.workload.kind.value}: bits are compared inside of "
                "PyTorch's ranks only; allow exact"
            )
        for name in self.verify:
            if reason := self.catalogue[name].explain_no_certificate():
                raise ValueError(f"verify changes {name} and allow is bitwise: {reason} Allow exact")
        return self

    @field_validator("values")
    @classmethod
    def _parse_values(
        cls, values: dict[str, tuple[Value, ...]], info: ValidationInfo
    ) -> dict[str, tuple[Value, ...]]:
        known = _catalogue_so_far(info)
        parsed: dict[str, tuple[Value, ...]] = {}
        for name, wanted in values.items():
            if name not in known:
                raise ValueError(f"values names {known.say_unknown([name])}")
            if not wanted:
                raise ValueError(
                    f"values of {name} is empty: name the values to try, or put {name} in freeze"
                )
            parsed[name] = tuple(dict.fromkeys(known[name].parse(value) for value in wanted))
        return parsed

    @model_validator(mode="after")
    def _refuse_values_of_frozen_knobs(self) -> "JobSpec":
        if both := [name for name in self.values if name in self.freeze]:
            raise ValueError(
                f"{', '.join(both)}: values gives values to try and freeze keeps the baseline's; name a knob in one"
            )
        return self

    @field_validator("workload")
    @classmethod
    def _refuse_knobs_of_no_sense(cls, workload: Workload) -> Workload:
        refuse_unknown_knobs(workload)
        refuse_senseless_own(workload)
        refuse_only_todays(workload)
        return workload

    @model_validator(mode="after")
    def _refuse_testbeds_of_another_size(self) -> "JobSpec":
        if self.testbed is not None and self.testbed.nodes != self.nodes:
            raise ValueError(
                f"nodes is {self.nodes} and testbed.nodes {self.testbed.nodes}: give both the same number of nodes"
            )
        return self


def _catalogue_so_far(info: ValidationInfo) -> Catalogue:
    """The knobs of the workload that was read before; Fleet's where that one was refused."""
    workload = info.data.get("workload")
    return join_own(workload.own) if workload else CATALOGUE


class Job(Message):
    """A tuning job as the server knows it."""

    id: str
    """Short unique id."""
    spec: JobSpec
    """What was asked for."""
    state: JobState
    """Where it stands."""
    stage: Stage = Stage.PROBE
    """What it is doing."""
    state_reason: str = ""
    """A sentence: why it is in this state, and what to do when it failed."""
    owner: str = ""
    """Who submitted it."""
    team: str = ""
    """The team that may change it besides its owner; empty for none."""
    created_at: datetime
    """When it was submitted (UTC)."""
    started_at: datetime | None = None
    """When its first session started."""
    finished_at: datetime | None = None
    """When it reached a final state."""
    continued_at: tuple[datetime, ...] = ()
    """When it was given more budget after it had ended, oldest first."""
    archived_at: datetime | None = None
    """Since when it is left out of lists that do not ask for archived jobs; None: it is not."""
    facts: WorkloadFacts | None = None
    """What the runtime saw of the script; None before the first session got that far."""
    cluster: Cluster = Cluster()
    """The nodes of its gang."""
    baseline: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Knob values of the script as it stands, where the runtime could observe them."""
    refusals: dict[str, str] = Field(default_factory=dict)
    """Knobs the runtime cannot serve for this script, each with its sentence."""
    standing: Standing | None = None
    """The best strategy so far, as the planner saw it at the latest race; None while none is expected to be faster."""
    version: int = 0
    """Grows with every change; the ETag."""

    @cached_property
    def catalogue(self) -> Catalogue:
        """The knobs that the job knows, as they act in its script."""
        known, facts = self.spec.catalogue, self.facts
        return known if facts is None else fit_to_script(known, facts.rounds_sums, facts.keeps_buckets)

    @property
    def rate_unit(self) -> str:
        """What its rates are told in."""
        return self.facts.rate_unit if self.facts else SAMPLES_PER_S

    @property
    def etag(self) -> str:
        """What `If-Match` and `If-None-Match` name this version by."""
        return f'"{self.version}"'
