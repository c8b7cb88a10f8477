"""How a strategy is said in a framework's own settings: a table of knobs, and what one line of it may answer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from advisor.exporters.by_hand import describe_by_hand, describe_reduction, find_buckets
from advisor.exporters.launch.environment import VARIABLES
from advisor.exporters.selection import idle_because, typed_values
from advisor.protocol.answers.advice import Advice, Provenance
from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value
from advisor.protocol.nodes.cluster import DeviceKind
from advisor.protocol.training.workload import DdpFacts


@dataclass(frozen=True)
class Situation:
    """What a line of the table looks at."""

    values: Mapping[str, Value]
    """The strategy: a value for every knob."""
    backend: str
    on_gpu: bool
    microbatches: int
    """Forward passes per optimizer step, as the script was measured."""
    optimizers: tuple[str, ...]
    bytes_per_number: int
    """Of a gradient."""
    sharding: str
    """What takes DDP's place, as the script was measured; empty for DDP."""
    batch: int
    """Samples of one forward pass, as the script was measured; 0 where that is unknown."""

    @property
    def merged_steps(self) -> int:
        """Forward passes per optimizer step under the strategy."""
        return self.microbatches * int(self.values["gradient_merge_k_steps"])


class Code(str):
    """A value that is written as it stands: an expression of Python."""

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Said:
    """What a knob is in the framework's words."""

    settings: Mapping[str, Value | None]
    """Setting -> value; as the framework spells it, dots leading into nested settings."""
    note: str = ""
    """How that differs from what was measured; empty where it does not."""


@dataclass(frozen=True)
class Refusal:
    """Why the framework cannot be told."""

    sentence: str


Line = Callable[[Situation], Said | Refusal]
"""What a knob, in its situation, is called in the framework."""
Table = Mapping[str, Line]
"""The knobs that a framework has settings for."""


@dataclass
class Settings:
    """A strategy in a framework's settings, and what is not among them."""

    entries: dict[str, Value | None] = field(default_factory=dict)
    """Setting -> value."""
    provenance: dict[str, Provenance] = field(default_factory=dict)
    unmapped: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def choose_settings(advice: Advice, job: Job, framework: str, table: Table, engine: str = "") -> Settings:
    """Return the settings for every change of the strategy that the table has a line for.

    Knobs that others make idle bring none; members of a group (`amp`, `amp_dtype`) share a line. `engine` is what the
    facts of a job call the framework's own engine, where that was measured.
    """
    values = typed_values(advice)
    situation = _describe(values, job)
    chosen = Settings()
    for knob in advice.changes:
        if idle_because(knob, values) is not None:
            chosen.unmapped[knob] = str(idle_because(knob, values))
            continue
        sharded = describe_reduction(knob, values, job)
        if sharded and not (engine == situation.sharding and knob in table):
            chosen.unmapped[knob] = sharded
            continue
        if knob not in table:
            chosen.unmapped[knob] = explain_unmapped(knob, framework, values)
            continue
        answer = table[knob](situation)
        if isinstance(answer, Refusal):
            chosen.unmapped[knob] = answer.sentence
            continue
        chosen.entries |= answer.settings
        chosen.provenance[knob] = advice.provenance.get(knob, Provenance.CARRIED)
        if answer.note and answer.note not in chosen.warnings:
            chosen.warnings.append(answer.note)
    return chosen


def explain_unmapped(knob: str, framework: str, values: Mapping[str, Value]) -> str:
    """Return a sentence for a knob that the framework has no setting for."""
    if knob in VARIABLES:
        return (
            f"It is read from the environment when the ranks start: source strategy.env ({VARIABLES[knob]})."
        )
    by_hand = describe_by_hand(knob, values)
    return f"{framework} has no plain setting for it. {by_hand}".rstrip()


def _describe(values: Mapping[str, Value], job: Job) -> Situation:
    facts = job.facts
    return Situation(
        values=values,
        backend=facts.backend if facts else "nccl",
        on_gpu=facts is None or facts.device is DeviceKind.CUDA,
        microbatches=max(1, round(facts.microbatches_per_step)) if facts else 1,
        optimizers=facts.optimizers if facts else (),
        bytes_per_number=2 if facts and facts.gradient_dtype in {"float16", "bfloat16"} else 4,
        sharding=facts.sharding if facts else "",
        batch=round(facts.batch_size_per_rank / max(1.0, facts.microbatches_per_step)) if facts else 0,
    )


def list_ddp_words(job: Job) -> list[str]:
    """Return the arguments with which the script was seen to build DDP, for what takes the place of its own."""
    built = job.facts.ddp if job.facts is not None else DdpFacts()
    names = ("find_unused_parameters", "static_graph", "gradient_as_bucket_view")
    return [f"{name}=True" for name in names if getattr(built, name)]


def bucket_in_one_size(name: str, whole: bool = False) -> Line:
    """Return the line of a setting that gives all of DDP's buckets one size in MB."""

    def say(situation: Situation) -> Said | Refusal:
        if not situation.values["fuse_all_reduce_ops"]:
            return Refusal("It has no way to give every parameter a bucket of its own.")
        measured, first = find_buckets(situation.values)
        size: Value = max(1, round(measured)) if whole else measured
        differs = []
        if size != measured:
            differs.append(f"measured at {measured:g} MB, and it takes whole MB")
        if first != measured:
            differs.append(f"the first bucket gets {size:g} MB too, and had {first:g} MB in the trials")
        label = name.rpartition(".")[2]
        return Said({name: size}, f"{label}: {'; '.join(differs)}." if differs else "")

    return say


def first_bucket(situation: Situation) -> Said | Refusal:
    """The line of the first bucket where all buckets have one size."""
    values = situation.values
    if float(values["last_comm_group_size_MB"]) >= float(values["fuse_grad_size_in_MB"]):
        return Said({})
    return Refusal("All buckets get one size here, the first one too.")


def accumulation(name: str, note: str = "") -> Line:
    """Return the line of a setting that counts forward passes per optimizer step and averages over them."""

    def say(situation: Situation) -> Said | Refusal:
        if not situation.values["gradient_merge_avg"]:
            return Refusal(f"{name} averages the merged gradients, and the trials added them up.")
        return Said({name: situation.merged_steps}, f"{name}: {note}" if note else "")

    return say


def batch_size(name: str) -> Line:
    """Return the line of a setting that takes the samples of a rank's forward pass."""

    def say(situation: Situation) -> Said | Refusal:
        if situation.batch < 1:
            return Refusal(f"{name} takes a number of samples, and the script's own is not known.")
        return Said({name: situation.batch * int(situation.values["batch_size_multiple"])})

    return say


def precision(name: str, by_type: Mapping[str, Value], off: Value) -> Line:
    """Return the line of a setting that chooses the 16-bit type of mixed precision."""

    def say(situation: Situation) -> Said | Refusal:
        if not situation.values["amp"]:
            return Said({name: off})
        return Said({name: by_type[str(situation.values["amp_dtype"])]})

    return say


def plainly(name: str, knob: str) -> Line:
    """Return the line of a setting that takes the knob's own value."""
    return lambda situation: Said({name: situation.values[knob]})
