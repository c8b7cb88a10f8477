"""Which fields of Paddle's DistributedStrategy a strategy sets, and with which values.

What is written, and what is not: the fields of the knobs that were timed, together with the companions they make no
sense without, each of them explicitly, even where the value is the version's default. Every other field is left at
Paddle's own default, although the Fleet documents name other defaults for some (`cudnn_exhaustive_search`, for one):
an export must not switch on what was not measured. One field is written always: `a_sync` is true in Paddle, and an
advised strategy is for collective training; those of jobs with parameter servers are chosen in `paddle_servers.py`.
What Paddle does with a field is in `advisor/protocol/knobs/paddle.py`.

Paddle acts on no limit of layers in an allreduce: where one was advised, the sizes that Paddle does act on are made as
small as the limit made the buckets, so that no file fuses more than the strategy that was timed.

Unless the job's own workload is a Paddle script, no field claims to be more than translated.
"""

import math
from dataclasses import dataclass, field

from advisor.exporters.format import ExportError, Written
from advisor.exporters.words import idle_because, typed_values
from advisor.protocol.answers.advice import Advice, Provenance
from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.changes import spell_with_unit
from advisor.protocol.knobs.knob import Knob
from advisor.protocol.knobs.paddle import VERSIONS, Reach, explain_not_written, reach_of
from advisor.protocol.knobs.strategy import DistributedStrategy, Layout, broken_rules
from advisor.protocol.training.workload import WorkloadKind

SIZE, FIRST_SIZE, LAYERS = "fuse_grad_size_in_MB", "last_comm_group_size_MB", "fuse_grad_size_in_TFLOPS"
"""What decides how many gradients an allreduce has; the first is an int32 in Paddle."""
_MB = 2**20
STATIC_FUSION = "fuse_grad_size_in_num"
"""What static programs read in the place of fuse_grad_size_in_MB."""
_GRAPH_STAYS = "without_graph_optimization"
"""Field without a knob: unless it is false, local SGD's program goes on reducing gradients in every step (2.6.2), or
does not build (3.3.1). On its own it would stop the reduction altogether."""
_LOCAL_OPTIMIZERS = frozenset({"SGD", "Momentum"})
"""Optimizers that Paddle applies local SGD to; others train as if it were off."""


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
class PaddleFields(Written):
    """The fields of one strategy for one version of Paddle, and what could not be written."""

    timed_as: Provenance = Provenance.TRANSLATED
    """How much is known about a knob that was timed."""
    fields: list[PaddleField] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    """Why a value is not the measured one, by knob."""
    is_collective: bool = True
    """False: the strategy is for parameter servers."""

    def __post_init__(self) -> None:
        if self.target not in VERSIONS:
            raise ExportError(
                f"{self.target!r} is no Paddle version we export for: choose {' or '.join(VERSIONS)}."
            )

    def blocks(self) -> dict[str, list[PaddleField]]:
        """Return the fields by the block they stand in; "" holds those of the strategy itself."""
        blocks: dict[str, list[PaddleField]] = {"": []}
        for entry in self.fields:
            blocks.setdefault(entry.path[0] if len(entry.path) > 1 else "", []).append(entry)
        return blocks


def is_timed(advice: Advice, knob: str) -> bool:
    """Whether blocks were timed with this knob varied, so that its value is more than a default."""
    return knob in advice.changes or advice.provenance.get(knob, Provenance.CARRIED) is not Provenance.CARRIED


def select_knobs(advice: Advice) -> tuple[str, ...]:
    """Return the timed knobs and the members of their groups, in the catalogue's order."""
    meant = {_group_of(knob) for knob in advice.catalogue.values() if is_timed(advice, knob.name)}
    return tuple(knob.name for knob in advice.catalogue.values() if _group_of(knob) in meant)


def _group_of(knob: Knob) -> str:
    """The switch that was in force with a knob when it was timed; its own name where there is none."""
    return knob.needs or knob.timed_with or knob.name


def choose_fields(advice: Advice, job: Job, target: str | None = None) -> PaddleFields:
    """Return the fields to write for Paddle `target`; raises ExportError for a version we do not write for."""
    in_paddle = job.spec.workload.kind is WorkloadKind.PADDLE
    timed_as = Provenance.MEASURED if in_paddle else Provenance.TRANSLATED
    chosen = PaddleFields(target=target or VERSIONS[0], timed_as=timed_as)
    values: dict[str, Value] = {**typed_values(advice), "a_sync": False}
    meant = {*select_knobs(advice), "a_sync"}
    is_limited = _hold_to_layers(values, advice, job, chosen)
    meant |= {"fuse_all_reduce_ops", SIZE, FIRST_SIZE} if is_limited else set()
    size = float(values[SIZE])
    _round_for_paddle(values, advice, chosen)
    layout = Layout(job.facts.world_size, job.facts.nodes) if job.facts else None
    chosen.warnings += broken_rules(
        DistributedStrategy().model_copy(update={name: values[name] for name in CATALOGUE}), layout
    )
    for knob in CATALOGUE:
        _place(knob, knob in meant, values, advice, chosen)
    _let_static_programs_fuse(size, is_limited, job, chosen)
    _let_local_sgd_act(advice, job, chosen)
    _warn_about_meaning(advice, chosen)
    return chosen


def _hold_to_layers(values: dict[str, Value], advice: Advice, job: Job, chosen: PaddleFields) -> bool:
    """Make the sizes as small as the advised limit of layers made the buckets; True where it is what limits them."""
    facts, limit = job.facts, float(values[LAYERS])
    if facts is None or not facts.gradient_bytes or limit >= facts.layers:
        return False
    if not is_timed(advice, LAYERS) or idle_because(LAYERS, values):
        return False
    size = facts.gradient_bytes / _MB * limit / facts.layers
    if size >= float(values[SIZE]):
        return False
    values[SIZE], values[FIRST_SIZE] = size, min(size, float(values[FIRST_SIZE]))
    chosen.notes[SIZE] = f"what {spell_with_unit(limit)} of {facts.layers} layers hold on average"
    chosen.warnings.append(
        f"Paddle acts on no limit of layers ({LAYERS}): its sizes are {chosen.notes[SIZE]}."
    )
    return True


def _round_for_paddle(values: dict[str, Value], advice: Advice, chosen: PaddleFields) -> None:
    size = float(values[SIZE])
    values[SIZE] = max(1, math.ceil(size))
    if values[SIZE] == size or SIZE in chosen.notes:
        return
    chosen.notes[SIZE] = f"measured at {spell_with_unit(size)}; Paddle takes whole MB"
    if is_timed(advice, SIZE) and not idle_because(SIZE, values):
        chosen.warnings.append(
            f"{SIZE} was measured at {spell_with_unit(size)} MB; Paddle takes whole MB, so it is rounded up to "
            f"{spell_with_unit(values[SIZE])}."
        )


def _place(
    knob_name: str, meant: bool, values: dict[str, Value], advice: Advice, chosen: PaddleFields
) -> None:
    knob, because = CATALOGUE[knob_name], explain_not_written(knob_name, chosen.target)
    idle = idle_because(knob_name, values)
    unmapped = _unmapped_because(knob_name, values) or because
    if knob_name in advice.changes and not idle and unmapped and knob_name != "amp_dtype":
        chosen.unmapped[knob_name] = unmapped
    elif reach_of(knob_name, chosen.target) is Reach.ABSENT or knob.paddle_field is None:
        return
    elif because or not meant:
        chosen.left[knob_name] = because or "Not timed: left at Paddle's default."
    elif idle:
        chosen.left[knob_name] = idle
    else:
        timed = is_timed(advice, knob_name) and knob_name != "a_sync"
        provenance = chosen.timed_as if timed else Provenance.CARRIED
        path = tuple(knob.paddle_field.split("."))
        note = _note(knob_name, chosen)
        chosen.fields.append(PaddleField(knob_name, path, values[knob_name], provenance, note))


def _unmapped_because(knob: str, values: dict[str, Value]) -> str:
    """Return why a knob means something else in Paddle than what was timed; empty when it does not."""
    if knob == "fp16_allreduce_dtype":
        return "It belongs to fp16_allreduce, which is not written."
    if knob in ("amp", "amp_dtype") and values["amp"] and values["amp_dtype"] != "fp16":
        return (
            "It was measured in bf16, and Paddle's amp computes in fp16; its use_pure_bf16 is another mode, in which "
            "the parameters are bf16 too. Neither was measured."
        )
    if knob == "dgc_rank":
        return (
            "It is the measure of the PowerSGD hook that was timed; Paddle's dgc is set by sparsity instead."
        )
    return ""


def _note(knob: str, chosen: PaddleFields) -> str:
    if knob == "a_sync":
        return "Paddle's own default is true: parameter-server mode"
    reach = reach_of(knob, chosen.target)
    notes = [chosen.notes.get(knob, ""), "" if reach is Reach.ALWAYS else reach.value]
    return "; ".join(note for note in notes if note)


def _let_static_programs_fuse(size: float, is_limited: bool, job: Job, chosen: PaddleFields) -> None:
    """Write beside the buckets' size the number of gradients that it holds on average, which static programs read."""
    written = {entry.knob for entry in chosen.fields}
    if STATIC_FUSION in written or SIZE not in written or job.facts is None or not job.facts.gradient_bytes:
        return
    tensors = job.facts.parameter_tensors
    held = tensors * size * _MB / job.facts.gradient_bytes
    number = min(tensors, max(1, math.floor(held + 1e-6) if is_limited else round(held)))
    note = f"as many as the bytes hold; {Reach.STATIC.value}"
    chosen.left.pop(STATIC_FUSION, None)
    chosen.fields.append(PaddleField(STATIC_FUSION, (STATIC_FUSION,), number, Provenance.TRANSLATED, note))


def _let_local_sgd_act(advice: Advice, job: Job, chosen: PaddleFields) -> None:
    """Write what local SGD needs besides its own fields, and say where it would do nothing."""
    written = [entry.knob for entry in chosen.fields]
    on = [name for name in ("localsgd", "adaptive_localsgd") if name in written and advice.strategy[name]]
    if not on:
        return
    note = "local SGD needs it"
    field = PaddleField(on[0], (_GRAPH_STAYS,), False, Provenance.CARRIED, note)
    # Before the knob's own field, which says how much is known about it.
    chosen.fields.insert(0, field)
    others = [name for name in (job.facts.optimizers if job.facts else ()) if name not in _LOCAL_OPTIMIZERS]
    if others:
        chosen.warnings.append(
            f"Paddle applies local SGD to SGD and Momentum only; under {', '.join(others)} it trains as if it were off."
        )


def _warn_about_meaning(advice: Advice, chosen: PaddleFields) -> None:
    """Say which written changes Paddle reads in one of its two modes only, or understands otherwise."""
    written = list(dict.fromkeys(entry.knob for entry in chosen.fields))
    for reach, mode in ((Reach.STATIC, "static-graph programs"), (Reach.DYNAMIC, "fleet.distributed_model")):
        if silent := [knob for knob in written if reach_of(knob, chosen.target) is reach]:
            chosen.warnings.append(
                f"Read by Paddle in {mode} only, and ignored elsewhere without a word: {', '.join(silent)}."
            )
    if flags := [knob for knob in written if reach_of(knob, chosen.target) is Reach.FLAG]:
        chosen.warnings.append(
            f"Sets a flag in Paddle {chosen.target} that was not seen to act: {', '.join(flags)}."
        )
    if chosen.target == "3.3.1" and any(
        reach_of(entry.knob, chosen.target) is Reach.STATIC for entry in chosen.fields
    ):
        chosen.warnings.append(
            "Static programs of Paddle 3.3.1 take fleet's optimizer with FLAGS_enable_pir_api=0 only."
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
