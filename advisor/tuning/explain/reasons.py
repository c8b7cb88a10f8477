"""Why each knob of the advised strategy changed, with what the verdict's launches say that it saves."""

from collections.abc import Mapping, Sequence

from advisor.protocol.answers.advice import KnobReason, Provenance
from advisor.protocol.asked.jobs import JobSpec
from advisor.protocol.base import Value
from advisor.protocol.kinds import Part, Place
from advisor.protocol.knobs.catalogue import Catalogue
from advisor.protocol.knobs.changes import spell_with_unit
from advisor.protocol.knobs.knob import Knob, KnobContext
from advisor.protocol.measured.results import Phases
from advisor.protocol.measured.trials import Block
from advisor.protocol.training.workload import WorkloadKind
from advisor.tuning.explain.knob_effects import Evidence
from advisor.tuning.measure.phases import pool_phases
from advisor.tuning.space.composition import join_names


def list_buckets(blocks: Sequence[Block]) -> tuple[int, ...]:
    """Return the last bucket sizes that DDP's own log stated in these blocks, in bytes."""
    return next((b.result.bucket_bytes for b in reversed(blocks) if b.result and b.result.bucket_bytes), ())


def explain_changes(
    changes: Mapping[str, Value],
    catalogue: Catalogue,
    context: KnobContext | None,
    own: Mapping[str, Value],
    baseline: Sequence[Block],
    strategy: Sequence[Block],
    phases: tuple[Phases, Phases],
    evidence: Sequence[Evidence] = (),
) -> tuple[KnobReason, ...]:
    """Return one reason per changed knob: what it does, what it brings in ms a step, and through what.

    `own` is what the script itself has, also where no strategy could hold it (a bucket of 0.02 MB).
    What it brings its `evidence` says; of a single change also the confirmation's blocks of baseline and strategy.
    """
    found = {name: piece for piece in evidence for name in piece.knobs}
    reasons = []
    for name, after in changes.items():
        before = own[name]
        sentence = _describe_change(catalogue[name], before, after, context)
        piece = found.get(name)
        if piece is not None:
            sentence += f" {_describe_evidence(catalogue[name], piece)}"
        elif len(changes) == 1 and (seen := _observe(catalogue[name], (baseline, strategy), phases)):
            sentence += f" Measured: {seen}."
        proof = next(
            (b.result.consumed[name] for b in reversed(strategy) if b.result and name in b.result.consumed),
            "",
        )
        reasons.append(
            KnobReason(
                knob=name, before=before, after=after, sentence=sentence, evidence=proof,
                effect=piece.effect if piece else None,
            )
        )  # fmt: skip
    return tuple(reasons)


def _describe_change(knob: Knob, before: Value, after: Value, context: KnobContext | None) -> str:
    sentence = f"{knob.meaning} {spell_with_unit(before)} → {spell_with_unit(after, knob.unit)}."
    rule = next((r for r in (knob.rule(context) if context else ()) if r.value == after), None)
    return f"{sentence} {rule.because}" if rule is not None else sentence


def _describe_evidence(knob: Knob, piece: Evidence) -> str:
    """`It saves 3.1 ms a step (95 % CI +1.9 … +4.4 ms, 8 rounds); with it buckets 31 → 9, …`."""
    effect = piece.effect
    others = join_names(other for other in piece.knobs if other != knob.name)
    claim = f"With {others} it saves" if others else "It saves"
    low, high = (f"{end * 1e3:+.1f}".replace("-", "−") for end in (effect.low_s, effect.high_s))
    sentence = (
        f"{claim} {_ms(effect.saved_s)} ms a step (95 % CI {low} … {high} ms{effect.describe_rounds()})"
    )
    phases = pool_phases(piece.without), pool_phases(piece.with_knobs)
    seen = _observe(knob, (piece.without, piece.with_knobs), phases)
    return f"{sentence}; with it {seen}." if seen else f"{sentence}."


def trace_provenance(varied: set[str], spec: JobSpec) -> dict[str, Provenance]:
    """Return for every knob how much is known about it; `varied` are those that some timed strategy changed.

    Only what the runtime does in PyTorch can be a translation: other programs realise a knob themselves.
    """
    return {
        name: Provenance.CARRIED
        if name not in varied
        else Provenance.MEASURED
        if knob.same_meaning or knob.place is Place.OWN or spec.workload.kind is not WorkloadKind.PYTORCH
        else Provenance.TRANSLATED
        for name, knob in spec.catalogue.items()
    }


def _observe(
    knob: Knob, blocks: tuple[Sequence[Block], Sequence[Block]], phases: tuple[Phases, Phases]
) -> str:
    """`buckets 31 → 9, exposed communication 14.2 → 3.1 ms`; what the knob's own part of the step did."""
    part = knob.part
    if knob.name == "num_threads" or part in {Part.COMPUTATION, Part.OPTIMIZER}:
        return _observe_computing(phases)
    if part is Part.BUFFERS:
        return f"broadcast of buffers {_ms(phases[0].buffers_s)} → {_ms(phases[1].buffers_s)} ms"
    if part is Part.INPUT:
        return f"waiting for data {_ms(phases[0].data_wait_s)} → {_ms(phases[1].data_wait_s)} ms"
    before, after = (list_buckets(side) for side in blocks)
    parts = [f"buckets {len(before)} → {len(after)}"] if len(before) != len(after) > 0 else []
    exposed = phases[0].exposed_comm_s, phases[1].exposed_comm_s
    if exposed[0] is not None and exposed[1] is not None:
        parts.append(f"exposed communication {_ms(exposed[0])} → {_ms(exposed[1])} ms")
    return ", ".join(parts)


def _observe_computing(phases: tuple[Phases, Phases]) -> str:
    before, after = (_ms(p.forward_s + p.backward_s + p.optimizer_s) for p in phases)
    return f"computation {before} → {after} ms" if before != after else ""


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"
