"""The tuning package, as the services ask for it."""

from collections.abc import Sequence
from datetime import datetime

from advisor.protocol.answers.advice import Advice
from advisor.protocol.answers.forecast import Forecast, WhatIf
from advisor.protocol.answers.previews import PlanPreview
from advisor.protocol.asked.jobs import Job
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import BlockSummary, JobHistory, Outcome, Trial
from advisor.tuning.decisions import Decision


class PlannerTuning:
    """Loads each part when it is first asked: the libraries are large."""

    def plan(
        self,
        job: Job,
        history: JobHistory,
        now: datetime,
        session_id: str | None = None,
        *,
        quick: bool = False,
    ) -> Decision:
        """Return the planner's decision."""
        from advisor.tuning.planner import plan

        return plan(job, history, now, session_id, quick=quick)

    def judge(
        self, trial: Trial, result: BlockResult, baseline: Sequence[BlockResult]
    ) -> tuple[Outcome, str] | None:
        """Return how a block ends its trial."""
        from advisor.tuning.measure.outcomes import judge_block

        return judge_block(trial, result, baseline)

    def summarise(self, result: BlockResult, reference: BlockResult | None = None) -> BlockSummary:
        """Return a block's statistics."""
        from advisor.tuning.measure.statistics import summarise_race

        return summarise_race(result, reference)

    def advise(self, job: Job, history: JobHistory, now: datetime) -> Advice:
        """Return the advice."""
        from advisor.tuning.explain.advice import build_advice

        return build_advice(job, history, now)

    def forecast(self, job: Job, history: JobHistory, now: datetime, asked: WhatIf) -> Forecast:
        """Return the cost model's forecast."""
        from advisor.tuning.explain.forecast import forecast

        return forecast(job, history, now, asked)

    def preview(self, job: Job, now: datetime) -> PlanPreview:
        """Return what a job would do."""
        from advisor.tuning.explain.preview import preview_plan

        return preview_plan(job, now)
