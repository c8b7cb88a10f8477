"""The tuning job: what is asked for, and where it stands."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field, field_validator, model_validator

from advisor.protocol.base import Message, Spec, Value
from advisor.protocol.cluster import Cluster
from advisor.protocol.knob_entries import CATALOGUE
from advisor.protocol.knobs import Effect
from advisor.protocol.reach import list_given
from advisor.protocol.testbed import Testbed
from advisor.protocol.workload import Workload, WorkloadFacts


class JobState(StrEnum):
    """The state of a job; the last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen."""
        return self in {JobState.FINISHED, JobState.FAILED, JobState.CANCELLED}


class Stage(StrEnum):
    """What a running job is doing."""

    PROBE = "probe"
    SEARCH = "search"
    FINALS = "finals"
    SIMPLIFY = "simplify"
    """Knobs of the winner that do not earn their place go back to the baseline."""
    CONFIRM = "confirm"
    DONE = "done"


class Budget(Spec):
    """What a job may spend. Search and confirmation share it; a third is kept for the confirmation."""

    max_trials: int = Field(default=24, ge=1, le=500)
    """Strategies measured in the search, the probe and the confirmation not counted."""
    max_seconds: float = Field(default=1800, gt=0)
    """Wall time of all sessions together, in seconds."""
    max_device_hours: float | None = Field(default=None, gt=0)
    """Device-hours (ranks on CPU nodes) of all sessions together; None sets no limit."""
    max_rounds: int = Field(default=16, ge=4, le=64)
    """Most rounds of the confirmation; a round is one block of the baseline and one of each finalist."""


class Measurement(Spec):
    """How long a block lasts."""

    warmup_steps: int = Field(default=5, ge=1, le=1000)
    """Steps after a switch that are not counted; more are cut where the block is not steady."""
    min_steps: int = Field(default=20, ge=5, le=10_000)
    """Fewest timed steps of a block."""
    max_steps: int = Field(default=200, ge=5, le=100_000)
    """Most timed steps of a block."""
    block_s: float = Field(default=3.0, gt=0, le=600)
    """Seconds a block aims at, within those limits."""


class JobSpec(Spec):
    """A tuning job as its owner writes it."""

    name: str = Field(default="", max_length=100)
    """A name for people; made from the script's name when empty."""
    workload: Workload
    """What is trained."""
    nodes: int = Field(default=1, ge=1, le=1024)
    """Agents that hold a session together."""
    testbed: Testbed | None = None
    """Measure on this testbed's agents only; None means real nodes. It has as many nodes as the job."""
    allow: Effect = Effect.EXACT
    """The highest rung the verdict may stand on: exact, numeric or convergence."""
    knobs: tuple[str, ...] = ()
    """Knobs to search; empty means every knob that can matter."""
    freeze: tuple[str, ...] = ()
    """Knobs to leave at the baseline."""
    values: dict[str, tuple[Value, ...]] = Field(default_factory=dict)
    """The only values to try of a knob; the baseline's own always counts. Knobs not named take the catalogue's."""
    gangs: int = Field(default=1, ge=1, le=64)
    """Gangs of `nodes` agents each that search side by side, where as many agents are idle."""
    budget: Budget = Budget()
    """What may be spent."""
    measurement: Measurement = Measurement()
    """How long a block lasts."""
    min_gain: float = Field(default=0.01, ge=0, lt=1)
    """Smallest gain worth recommending, as a fraction of the baseline's throughput."""
    loss_tolerance: float = Field(default=0.02, ge=0, lt=1)
    """Loss at equal samples that a numeric or convergence knob may cost, as a fraction of the loss's drop."""
    seed: int = Field(default=0, ge=0)
    """Seed of the search; the same seed and history give the same next suggestion."""
    session_timeout_s: float = Field(default=3600, gt=0)
    """Longest life of one session, in seconds."""
    hang_timeout_s: float = Field(default=120, gt=0)
    """Longest time a rank may go without a step before its session is ended as hung."""

    @field_validator("knobs", "freeze")
    @classmethod
    def _refuse_unknown_knobs(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [name for name in names if name not in CATALOGUE]
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: no such knob; docs/knobs.md lists them")
        return names

    @field_validator("values")
    @classmethod
    def _parse_values(cls, values: dict[str, tuple[Value, ...]]) -> dict[str, tuple[Value, ...]]:
        parsed: dict[str, tuple[Value, ...]] = {}
        for name, wanted in values.items():
            if name not in CATALOGUE:
                raise ValueError(f"values names {name}: no such knob; docs/knobs.md lists them")
            if not wanted:
                raise ValueError(
                    f"values of {name} is empty: name the values to try, or put {name} in freeze"
                )
            parsed[name] = tuple(dict.fromkeys(CATALOGUE[name].parse(value) for value in wanted))
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
        list_given(workload)
        return workload

    @model_validator(mode="after")
    def _refuse_testbeds_of_another_size(self) -> "JobSpec":
        if self.testbed is not None and self.testbed.nodes != self.nodes:
            raise ValueError(
                f"nodes is {self.nodes} and testbed.nodes {self.testbed.nodes}: give both the same number of nodes"
            )
        return self


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
    created_at: datetime
    """When it was submitted (UTC)."""
    started_at: datetime | None = None
    """When its first session started."""
    finished_at: datetime | None = None
    """When it reached a final state."""
    facts: WorkloadFacts | None = None
    """What the runtime saw of the script; None before the first session got that far."""
    cluster: Cluster = Cluster()
    """The nodes of its gang."""
    baseline: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Knob values of the script as it stands, where the runtime could observe them."""
    refusals: dict[str, str] = Field(default_factory=dict)
    """Knobs the runtime cannot serve for this script, each with its sentence."""
    version: int = 0
    """Grows with every change; the ETag."""
