"""Why each knob of the advised strategy changed, with the evidence of the confirmation's own blocks."""

from collections.abc import Mapping, Sequence

from advisor.protocol.advice import KnobReason, Provenance
from advisor.protocol.base import Value
from advisor.protocol.knob_entries import CATALOGUE
from advisor.protocol.knobs import KnobContext
from advisor.protocol.trials import Block, Phases
from advisor.protocol.workload import WorkloadKind
from advisor.tuning.composition import spell

SAME_MEANING = frozenset(
    {
        "fuse_all_reduce_ops", "fuse_grad_size_in_MB", "last_comm_group_size_MB", "num_threads", "fp16_allreduce",
        "fp16_allreduce_dtype", "localsgd", "localsgd_k_steps", "NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD",
        "gradient_merge", "gradient_merge_k_steps", "gradient_merge_avg", "amp", "amp_dtype",
    }
)  # fmt: skip
"""Knobs whose PyTorch realisation is the very thing that Fleet's field means; the others are timed in translation."""


def list_buckets(blocks: Sequence[Block]) -> tuple[int, ...]:
    """Return the last bucket sizes that DDP's own log stated in these blocks, in bytes."""
    return next((b.result.bucket_bytes for b in reversed(blocks) if b.result and b.result.bucket_bytes), ())


def explain_changes(
    changes: Mapping[str, Value],
    context: KnobContext | None,
    baseline: Sequence[Block],
    strategy: Sequence[Block],
    phases: tuple[Phases, Phases],
) -> tuple[KnobReason, ...]:
    """Return one reason per changed knob from the confirmation's blocks of baseline and strategy."""
    observed = _observe(baseline, strategy, phases)
    reasons = []
    for name, after in changes.items():
        knob = CATALOGUE[name]
        before = context.baseline[name] if context else knob.default
        unit = f" {knob.unit}" if knob.unit else ""
        sentence = f"{knob.meaning} {spell(before)} → {spell(after)}{unit}."
        rule = next((r for r in (knob.rule(context) if context else ()) if r.value == after), None)
        if rule is not None:
            sentence += f" {rule.because}"
        seen = _observe_computing(phases) if name == "num_threads" else observed
        if seen:
            sentence += f" {'Measured' if len(changes) == 1 else 'Together with the other changes'}: {seen}."
        proof = next(
            (b.result.consumed[name] for b in reversed(strategy) if b.result and name in b.result.consumed),
            "",
        )
        reasons.append(KnobReason(knob=name, before=before, after=after, sentence=sentence, evidence=proof))
    return tuple(reasons)


def trace_provenance(varied: set[str], kind: WorkloadKind) -> dict[str, Provenance]:
    """Return for every knob how much is known about it; `varied` are those that some timed strategy changed.

    Only what the runtime does in PyTorch can be a translation: other programs realise a knob themselves.
    """
    return {
        name: Provenance.CARRIED
        if name not in varied
        else Provenance.MEASURED
        if name in SAME_MEANING or kind is not WorkloadKind.PYTORCH
        else Provenance.TRANSLATED
        for name in CATALOGUE
    }


def _observe(baseline: Sequence[Block], strategy: Sequence[Block], phases: tuple[Phases, Phases]) -> str:
    """`buckets 31 → 9, exposed communication 14.2 → 3.1 ms`."""
    before, after = list_buckets(baseline), list_buckets(strategy)
    parts = [f"buckets {len(before)} → {len(after)}"] if before and after and before != after else []
    exposed = phases[0].exposed_comm_s, phases[1].exposed_comm_s
    if exposed[0] is not None and exposed[1] is not None:
        parts.append(f"exposed communication {_ms(exposed[0])} → {_ms(exposed[1])} ms")
    return ", ".join(parts)


def _observe_computing(phases: tuple[Phases, Phases]) -> str:
    before, after = (p.forward_s + p.backward_s + p.optimizer_s for p in phases)
    return f"computation {_ms(before)} → {_ms(after)} ms" if before > 0 and after > 0 else ""


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"
