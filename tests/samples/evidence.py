"""Made-up evidence: beside the verdict of the made-up job."""

from advisor.protocol.answers.advice import (
    Action,
    Advice,
    Finding,
    Interval,
    KnobEffect,
    ParetoPoint,
    Verdict,
)
from advisor.protocol.answers.forecast import Forecast
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.changes import Changes

SAVED = KnobEffect(saved_s=0.0184, low_s=0.0151, high_s=0.0216, rounds=8)
SEARCH_ENDED = "The next trial would take 14 s and is expected to gain less than that pays for."


def make_findings() -> tuple[Finding, ...]:
    """Return what may bound a step: one thing that does, two that do not."""
    return (
        Finding(
            bound="communication",
            share=0.15,
            holds=True,
            evidence="24.2 of 161.3 ms a step wait for gradients.",
            knobs_in=("fuse_grad_size_in_MB", "nccl_comm_num"),
        ),
        Finding(
            bound="input",
            share=0.007,
            holds=False,
            evidence="1.2 ms of each step wait for data.",
            knobs_out=("loader_num_workers", "loader_prefetch_factor"),
        ),
        Finding(bound="launch", share=0.007, holds=False, evidence="1.1 ms of each step are host work."),
    )


def make_pareto() -> tuple[ParetoPoint, ...]:
    """Return strategies of every rung in the plane of throughput and loss."""
    return (
        ParetoPoint(
            trial_number=9,
            changes={"localsgd": True, "localsgd_k_steps": 4},
            effect=Effect.CONVERGENCE,
            throughput_ratio=1.231,
            loss_change=0.031,
            loss_error=0.008,
            on_front=True,
        ),
        ParetoPoint(
            trial_number=7,
            changes={"fp16_allreduce": True},
            effect=Effect.NUMERIC,
            throughput_ratio=1.197,
            loss_change=None,
            on_front=False,
        ),
        ParetoPoint(
            trial_number=10,
            changes={"fuse_grad_size_in_MB": 96.0, "nccl_comm_num": 2, "sync_nccl_allreduce": False},
            effect=Effect.EXACT,
            throughput_ratio=1.161,
            loss_change=0.0,
            on_front=True,
        ),
    )


def make_forecasts() -> tuple[Forecast, ...]:
    """Return what the cost model expects on more nodes and over other links."""
    told = "A prediction of the cost model, which misses its own measurements by 4 %."
    rows = ((4, None, 0.1512, 3386.0, 0.86), (8, None, 0.1558, 6572.0, 0.83), (2, 1e9, 0.2104, 1217.0, 0.61))
    return tuple(
        Forecast(
            nodes=nodes,
            bits_per_s=bits_per_s,
            changes={"fuse_grad_size_in_MB": 32.0, "nccl_comm_num": 2},
            step_time_s=step_time_s,
            baseline_step_time_s=1.17 * step_time_s,
            samples_per_s=rate,
            low=rate / 1.08,
            high=rate * 1.08,
            scaling_efficiency=scaling,
            caveat=told,
        )
        for nodes, bits_per_s, step_time_s, rate, scaling in rows
    )


def leave_undecided(advice: Advice) -> Advice:
    """Return the same advice with a likely gain that is not proven."""
    return advice.model_copy(
        update={
            "verdict": Verdict.UNDECIDED,
            "changes": Changes(),
            "candidate": advice.changes,
            "strategy": advice.baseline,
            "reasons": (),
            "left": Changes(),
            "headline": "Probably faster (1.3x measured, 95 % CI 0.94x … 1.9x) with fuse_grad_size_in_MB 96, "
            "not proven yet: the interval still reaches no gain.",
            "action": Action.CONTINUE,
            "what_to_do": "Continue, nothing measured is lost: `advisor tune --continue sample --minutes 10`",
            "continue_s": 600.0,
            "smallest_gain": 0.06,
            "gain": Interval(ratio=1.31, low=0.94, high=1.82, rounds=6, sessions=2),
            "phases_after": advice.phases_before,
            "buckets_after": advice.buckets_before,
            "strategy_samples_per_s": advice.baseline_samples_per_s,
            "cost": advice.cost.model_copy(update={"pays_back_after_s": None}),
            "next_steps": (
                "The baseline alone varied by 12 % from block to block: a quieter machine decides sooner.",
            ),
        }
    )
