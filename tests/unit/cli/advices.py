"""Literal advices for the tests of the command line: a change, a keep, undecided, and nothing confirmed."""

from dataclasses import replace

from advisor.protocol.answers.advice import (
    Action,
    Advice,
    Cost,
    Diagnosis,
    DroppedKnob,
    Interval,
    KnobEffect,
    KnobReason,
    Provenance,
    RungAdvice,
    Verdict,
)
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.measured.results import Phases

_DEFAULTS = {name: knob.default for name, knob in CATALOGUE.items()}
_BEFORE = Phases(
    data_wait_s=0.0012,
    forward_s=0.048,
    backward_s=0.0871,
    exposed_comm_s=0.0142,
    optimizer_s=0.0106,
    own_code_s=0.0002,
)
_AFTER = Phases(
    data_wait_s=0.0011,
    forward_s=0.048,
    backward_s=0.0865,
    exposed_comm_s=0.0031,
    optimizer_s=0.0112,
    own_code_s=0.0002,
)


def a_change() -> Advice:
    """A reliable gain on the exact rung, with a numeric rung measured beside it."""
    changes = {"fuse_grad_size_in_MB": 8.0, "sync_nccl_allreduce": False, "nccl_comm_num": 2}
    return Advice(
        job_id="job-1",
        verdict=Verdict.CHANGE,
        headline="Faster: at least +5.9 %, most likely +8.4 % (95 % CI +5.9 … +10.7 %) with three changes.",
        action=Action.USE,
        what_to_do="Use the strategy: `advisor export job-1` writes it for your framework.",
        allowed=Effect.EXACT,
        strategy={**_DEFAULTS, **changes},
        baseline=_DEFAULTS,
        changes=changes,
        provenance={
            name: Provenance.TRANSLATED if name in changes else Provenance.CARRIED for name in CATALOGUE
        },
        gain=Interval(ratio=1.084, low=1.059, high=1.107, rounds=8, sessions=2),
        baseline_samples_per_s=1586.2,
        strategy_samples_per_s=1719.4,
        reasons=(
            KnobReason(
                knob="fuse_grad_size_in_MB",
                before=32.0,
                after=8.0,
                sentence="Smaller buckets start travelling earlier: 2 → 6 messages a step, exposed communication "
                "14.2 → 3.1 ms.",
                evidence="DDP's log: bucket sizes 8.0 MB",
                effect=KnobEffect(saved_s=0.0092, low_s=0.0071, high_s=0.0113, rounds=8),
            ),
            KnobReason(
                knob="nccl_comm_num", before=1, after=2, sentence="Two communicators overlap messages."
            ),
            KnobReason(
                knob="sync_nccl_allreduce", before=True, after=False, sentence="Lets the two overlap at all."
            ),
        ),
        ladder=(
            RungAdvice(
                effect=Effect.NUMERIC,
                changes={"fp16_allreduce": True},
                gain=Interval(ratio=1.42, low=1.38, high=1.46, rounds=4, sessions=1),
                sentence="+42 % with the loss within tolerance over 400 steps.",
                caveat="A short trial cannot see what rounding does after days.",
            ),
        ),
        diagnosis=Diagnosis(
            bound="communication", sentence="9 % of a step is waiting for the network.", ceiling_ratio=1.097
        ),
        phases_before=_BEFORE,
        phases_after=_AFTER,
        cost=Cost(wall_s=1080, device_hours=0.6, trials=24, sessions=3, pays_back_after_s=14_000),
        dropped=(
            DroppedKnob(
                knob="use_hierarchical_allreduce", reason="Hierarchical allreduce needs several nodes."
            ),
            DroppedKnob(knob="NCCL_SOCKET_NTHREADS", reason="The job communicates over gloo."),
            DroppedKnob(knob="NCCL_NSOCKS_PERTHREAD", reason="The job communicates over gloo."),
            DroppedKnob(knob="amp", reason="Not varied yet."),
            DroppedKnob(knob="dgc", reason="Not varied yet."),
        ),
        next_steps=("Load strategy.json in your script.", "A faster network would bring at most 2 % more."),
        cluster="1 node × 2 CPUs",
        software={"torch": "2.13.0", "python": "3.11.7"},
    )


def a_keep() -> Advice:
    """A candidate was confirmed to bring nothing."""
    return a_change().model_copy(
        update={
            "verdict": Verdict.KEEP,
            "headline": "Keep your settings: the strategy that looked best, num_threads 2, brings less than 2 %: "
            "+0.4 % measured, 95 % CI −0.9 … +1.7 %. The 22 others that the search measured looked no better than "
            "+0.9 %; gains up to +2.6 % are not excluded.",
            "action": Action.KEEP,
            "what_to_do": "Change nothing.",
            "strategy": _DEFAULTS,
            "changes": {},
            "reasons": (),
            "gain": Interval(ratio=1.004, low=0.991, high=1.017, rounds=16, sessions=2),
            "strategy_samples_per_s": 1586.2,
            "phases_after": _BEFORE,
            "ladder": (),
            "cost": Cost(wall_s=1800, device_hours=1.0, trials=24, sessions=3),
        }
    )


def undecided() -> Advice:
    """A likely gain that is not proven."""
    return a_keep().model_copy(
        update={
            "verdict": Verdict.UNDECIDED,
            "headline": "Probably faster (3.4x measured, 95 % CI 0.90x … 12x) with num_threads 1, not proven yet.",
            "action": Action.CONTINUE,
            "what_to_do": "Continue, nothing measured is lost: `advisor tune --continue job-1 --minutes 10`",
            "continue_s": 600.0,
            "smallest_gain": 0.021,
            "gain": Interval(ratio=3.4, low=0.9, high=12.0, rounds=4, sessions=2),
            "candidate": {"num_threads": 1},
        }
    )


def unconfirmed() -> Advice:
    """The budget ended before anything was confirmed; communication could not be measured."""
    unknown = replace(_BEFORE, exposed_comm_s=None)
    return undecided().model_copy(
        update={
            "gain": None,
            "headline": "Not decided: the budget ended before any strategy was measured.",
            "phases_before": unknown,
            "phases_after": unknown,
            "diagnosis": Diagnosis(bound="balanced", sentence="Nothing stands out."),
        }
    )
