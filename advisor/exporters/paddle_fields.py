"""Which fields of Paddle's DistributedStrategy a strategy sets, and with which values.

What is written, and what is not: the fields of the knobs that were timed, together with the companions they make no
sense without, each of them explicitly, even where the value is the version's default. Every other field is left at
Paddle's own default, although the Fleet documents name other defaults for some (`cudnn_exhaustive_search`, for one):
an export must not switch on what nobody measured. One field is written always: `a_sync` is true in Paddle, and an
advised strategy is for collective training.

Unless the job's own workload is a Paddle script, no field claims to be more than translated.
"""

import math
from dataclasses import dataclass, field

from advisor.exporters.comments import describe_value
from advisor.exporters.exported import ExportError
from advisor.exporters.selection import idle_because, is_timed, select_knobs, typed_values
from advisor.protocol.advice import Advice, Provenance
from advisor.protocol.base import Value
from advisor.protocol.jobs import Job
from advisor.protocol.knob_entries import CATALOGUE
from advisor.protocol.strategy import DistributedStrategy, Layout, broken_rules
from advisor.protocol.workload import WorkloadKind

TARGETS = ("3.3.1", "2.6.2")
"""Paddle versions that can be written for, the default first."""
WHOLE_NUMBERS = frozenset({"fuse_grad_size_in_MB"})
"""Knobs with fractions whose field is an int32 in Paddle."""
_STATIC_ONLY = frozenset(
    {
        "fuse_all_reduce_ops", "nccl_comm_num", "sync_nccl_allreduce", "use_hierarchical_allreduce",
        "hierarchical_allreduce_inter_nranks", "fp16_allreduce", "localsgd", "localsgd_k_steps", "localsgd_begin_step",
        "adaptive_localsgd", "adaptive_localsgd_init_k_steps", "adaptive_localsgd_begin_step",
        "gradient_merge", "gradient_merge_k_steps", "gradient_merge_avg", "dgc",
    }
)  # fmt: skip
"""Knobs that Paddle's dynamic graph (`fleet.distributed_model`) accepts and does not read."""


@dataclass(frozen=True)
class PaddleField:
    """One field to write."""

    knob: str
    path: tuple[str, ...]
    """Field name, or block and field name."""
    value: Value
    provenance: Provenance
    note: str = ""
    """Why the value is not the measured one; empty when it is."""


@dataclass
class PaddleFields:
    """The fields of one strategy for one version of Paddle, and what could not be written."""

    target: str
    timed_as: Provenance
    """How much is known about a knob that was timed."""
    fields: list[PaddleField] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    unmapped: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def blocks(self) -> dict[str, list[PaddleField]]:
        """Return the fields by the block they stand in; "" holds those of the strategy itself."""
        blocks: dict[str, list[PaddleField]] = {"": []}
        for entry in self.fields:
            blocks.setdefault(entry.path[0] if len(entry.path) > 1 else "", []).append(entry)
        return blocks

    def provenance(self) -> dict[str, Provenance]:
        """Return how much is known about every field that is written, by knob."""
        return {entry.knob: entry.provenance for entry in self.fields}


def choose_fields(advice: Advice, job: Job, target: str | None = None) -> PaddleFields:
    """Return the fields to write for Paddle `target`; raises ExportError for a version we do not write for."""
    in_paddle = job.spec.workload.kind is WorkloadKind.PADDLE
    chosen = PaddleFields(target or TARGETS[0], Provenance.MEASURED if in_paddle else Provenance.TRANSLATED)
    if chosen.target not in TARGETS:
        raise ExportError(f"{target!r} is no Paddle version we export for: choose {' or '.join(TARGETS)}.")
    values = _round_for_paddle(advice, chosen)
    meant = set(select_knobs(advice)) | {"a_sync"}
    _obey_executor(values, meant, job, chosen)
    for knob in CATALOGUE:
        _place(knob, knob in meant, values, advice, chosen)
    _warn_about_reach(advice, chosen)
    return chosen


def _round_for_paddle(advice: Advice, chosen: PaddleFields) -> dict[str, Value]:
    values: dict[str, Value] = {**typed_values(advice), "a_sync": False}
    for knob in WHOLE_NUMBERS:
        size = float(values[knob])
        values[knob] = float(max(1, math.ceil(size)))
        if values[knob] != size and is_timed(advice, knob) and not idle_because(knob, values):
            chosen.warnings.append(
                f"{knob} was measured at {describe_value(size)} MB; Paddle takes whole MB, so it is rounded up to "
                f"{describe_value(values[knob])}."
            )
    return values


def _obey_executor(values: dict[str, Value], meant: set[str], job: Job, chosen: PaddleFields) -> None:
    """Raise num_threads where the version has an executor whose rules the strategy would break."""
    layout = Layout(job.facts.world_size, job.facts.nodes) if job.facts else None
    has_executor = chosen.target in CATALOGUE["num_threads"].paddle_versions
    strategy = DistributedStrategy().model_copy(update=values)
    general = broken_rules(strategy, layout)
    if has_executor:
        for sentence in (s for s in broken_rules(strategy, layout, paddle=True) if s not in general):
            values["num_threads"] = int(values["nccl_comm_num"]) + 1
            meant.add("num_threads")
            chosen.warnings.append(f"{sentence} It is raised to {values['num_threads']}.")
    chosen.warnings += broken_rules(
        DistributedStrategy().model_copy(update=values), layout, paddle=has_executor
    )


def _place(
    knob_name: str, meant: bool, values: dict[str, Value], advice: Advice, chosen: PaddleFields
) -> None:
    knob = CATALOGUE[knob_name]
    exists = knob.paddle_field is not None and chosen.target in knob.paddle_versions
    idle = idle_because(knob_name, values)
    if (
        knob_name in advice.changes
        and not idle
        and (reason := _unmapped_because(knob_name, exists, values, chosen))
    ):
        chosen.unmapped[knob_name] = reason
    elif not exists or knob.paddle_field is None:
        return
    elif not meant:
        chosen.left[knob_name] = "Not timed: left at Paddle's default."
    elif idle:
        chosen.left[knob_name] = idle
    else:
        measured = advice.strategy.get(knob_name, knob.default)
        value = int(values[knob_name]) if knob_name in WHOLE_NUMBERS else values[knob_name]
        note = _note(knob_name, measured, value)
        timed = is_timed(advice, knob_name) and knob_name != "a_sync"
        provenance = chosen.timed_as if timed else Provenance.CARRIED
        path = tuple(knob.paddle_field.split("."))
        chosen.fields.append(PaddleField(knob_name, path, value, provenance, note))


def _unmapped_because(knob: str, exists: bool, values: dict[str, Value], chosen: PaddleFields) -> str | None:
    if knob == "fp16_allreduce_dtype":
        return None if values[knob] == "fp16" else "Paddle reduces in fp16 only."
    if knob == "fp16_allreduce" and values[knob] and values["fp16_allreduce_dtype"] != "fp16":
        return (
            "It was measured with bf16 on the wire, and Paddle reduces in fp16 only, whose smaller range was not "
            "measured. Set fp16_allreduce by hand if your gradients fit into fp16."
        )
    if knob in ("amp", "amp_dtype") and values["amp"] and values["amp_dtype"] != "fp16":
        return (
            "It was measured in bf16, and Paddle's amp computes in fp16; its use_pure_bf16 is another mode, in which "
            "the parameters are bf16 too. Neither was measured."
        )
    if knob == "amp_dtype":
        return None
    if knob == "dgc_rank":
        return (
            "It is the measure of the PowerSGD hook that was timed; Paddle's dgc is set by sparsity instead."
        )
    if exists:
        return None
    if CATALOGUE[knob].paddle_field is None:
        return "Paddle's DistributedStrategy has no such field: use the env export."
    versions = " and ".join(CATALOGUE[knob].paddle_versions)
    return f"The field exists in Paddle {versions} only, not in {chosen.target}."


def _note(knob: str, measured: Value, value: Value) -> str:
    if knob == "a_sync":
        return "Paddle's own default is true: parameter-server mode"
    if value == measured:
        return ""
    if knob in WHOLE_NUMBERS:
        return f"measured at {describe_value(measured)}; Paddle takes whole MB"
    return f"measured at {describe_value(measured)}; raised for Paddle's executor"


def _warn_about_reach(advice: Advice, chosen: PaddleFields) -> None:
    """Say which written changes Paddle reads only in one of its two modes: it ignores the rest without a word."""
    written = [entry.knob for entry in chosen.fields if entry.knob in advice.changes]
    if silent := [knob for knob in written if knob in _STATIC_ONLY]:
        chosen.warnings.append(
            "Read by Paddle in static-graph programs only, and ignored without a word by fleet.distributed_model: "
            f"{', '.join(silent)}."
        )
    if "fuse_grad_size_in_MB" in written:
        chosen.warnings.append(
            "fuse_grad_size_in_MB is read by fleet.distributed_model, sharding and pipeline; Paddle's plain "
            "static-graph data parallelism groups gradients by fuse_grad_size_in_num instead."
        )
    if "localsgd" in written and advice.strategy["localsgd"]:
        chosen.warnings.append(
            "Paddle goes on reducing gradients at every step under localsgd unless without_graph_optimization is set "
            "to False as well; check on your version that a step without averaging communicates nothing."
        )
    if "adaptive_localsgd" in written and advice.strategy["adaptive_localsgd"]:
        chosen.warnings.append(
            "Paddle's adaptive_localsgd has init_k_steps inside the square root of its formula, where the published "
            "one, which was timed, has it outside: its intervals are shorter by the root of init_k_steps."
        )
    if "dgc" in written and advice.strategy["dgc"]:
        chosen.warnings.append(
            "dgc was timed in translation, as compression to a low rank (PowerSGD). Paddle's dgc sends the largest "
            "gradients instead, on GPUs and with the Momentum optimizer only: measure it before you rely on it."
        )
    if "fp16_allreduce" in written and advice.strategy["fp16_allreduce"]:
        chosen.warnings.append(
            "CPU builds of Paddle were seen to drop the gradient reduction altogether under fp16_allreduce: compare "
            "the ranks' parameters after a few steps before you train with it."
        )
