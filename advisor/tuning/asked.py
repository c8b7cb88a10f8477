"""What services, courses and pages ask of the tuning package, as one object that a test can replace."""

from collections.abc import Sequence
from datetime import datetime

from advisor.protocol.answers.advice import Advice
from advisor.protocol.answers.forecast import Forecast, WhatIf
from advisor.protocol.answers.previews import PlanPreview
from advisor.protocol.asked.jobs import Job
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import BlockSummary, JobHistory, Outcome, Trial
from advisor.tuning.decisions import Decision


class Tuning:
    """The pure functions that decide; none does any I/O. Each loads when it is first asked: its libraries are large."""

    def plan(self, job: Job, history: JobHistory, now: datetime, *, quick: bool = False) -> Decision:
        """Return the next thing to do, for the live session or (without one) for the job; a function of the history.

        `quick`: at next to no cost.
        """
        from advisor.tuning.planner import plan

        return plan(job, history, now, quick=quick)

    def judge(
        self, trial: Trial, result: BlockResult, baseline: Sequence[BlockResult]
    ) -> tuple[Outcome, str] | None:
        """Return how a block ends its trial, held against the baseline's; None while the trial goes on."""
        from advisor.tuning.measure.outcomes import judge_block

        return judge_block(trial, result, baseline)

    def summarise(self, result: BlockResult, reference: BlockResult | None = None) -> BlockSummary:
        """Return a block's robust statistics, and what it says against the first arm of its race."""
        from advisor.tuning.measure.statistics import summarise_race

        return summarise_race(result, reference)

    def advise(self, job: Job, history: JobHistory, now: datetime) -> Advice:
        """Return the answer to the job."""
        from advisor.tuning.explain.advice import build_advice

        return build_advice(job, history, now)

    def forecast(self, job: Job, history: JobHistory, now: datetime, asked: WhatIf) -> Forecast:
        """Return what is to be expected on another cluster. Raises ForecastImpossible."""
        from advisor.tuning.explain.forecast import forecast

        return forecast(job, history, now, asked)

    def preview(self, job: Job, now: datetime) -> PlanPreview:
        """Return what a job would do, as far as its specification says."""
        from advisor.tuning.explain.preview import preview_plan

        return preview_plan(job, now)
