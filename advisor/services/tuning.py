"""What the services ask of the tuning package, as one object that a test can replace."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from advisor.protocol.answers.advice import Advice
from advisor.protocol.answers.forecast import Forecast, WhatIf
from advisor.protocol.answers.previews import PlanPreview
from advisor.protocol.asked.jobs import Job
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import BlockSummary, JobHistory, Outcome, Trial
from advisor.tuning.decisions import Decision


class Tuning(Protocol):
    """The pure functions that decide; none of them does any I/O."""

    def plan(
        self,
        job: Job,
        history: JobHistory,
        now: datetime,
        session_id: str | None = None,
        *,
        quick: bool = False,
    ) -> Decision:
        """Return the next thing to do, for a live session or (without one) for the job; a function of the history.

        Without a session while some are live: whether another gang joins. `quick`: at next to no cost.
        """
        ...

    def judge(
        self, trial: Trial, result: BlockResult, baseline: Sequence[BlockResult]
    ) -> tuple[Outcome, str] | None:
        """Return how a block ends its trial, held against the baseline's; None while the trial goes on."""
        ...

    def summarise(self, result: BlockResult, reference: BlockResult | None = None) -> BlockSummary:
        """Return a block's robust statistics, and what it says against the first arm of its race."""
        ...

    def advise(self, job: Job, history: JobHistory, now: datetime) -> Advice:
        """Return the answer to the job."""
        ...

    def forecast(self, job: Job, history: JobHistory, now: datetime, asked: WhatIf) -> Forecast:
        """Return what is to be expected on another cluster. Raises ForecastImpossible."""
        ...

    def preview(self, job: Job, now: datetime) -> PlanPreview:
        """Return what a job would do, as far as its specification says."""
        ...
