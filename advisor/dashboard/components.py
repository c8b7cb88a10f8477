"""What the page of components shows: every component in every state, from a made-up job."""

from dataclasses import replace
from datetime import datetime

from advisor.dashboard.samples.evidence import leave_undecided
from advisor.dashboard.samples.job import (
    Story,
    keep_defaults,
    make_advice,
    make_agents,
    make_finished_story,
    make_running_story,
)
from advisor.dashboard.views.chips import list_all_chips
from advisor.dashboard.views.job.page import view_overview
from advisor.dashboard.views.job.story import list_failures
from advisor.dashboard.views.server.jobs import view_job_line
from advisor.dashboard.views.server.site import order_agents
from advisor.dashboard.views.trials.measured import measure_trials
from advisor.dashboard.views.trials.page import view_trial_page
from advisor.dashboard.views.trials.table import view_trial_table
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import JobState, Stage
from advisor.protocol.measured.trials import JobHistory


def sample_components(now: datetime) -> dict[str, object]:
    """Return what the page of components shows: every component in every state."""
    running, finished = make_running_story(now), make_finished_story(now)
    advice = make_advice("sample")

    def page(name: str, story: Story, given: Advice | None = None, **changes: object) -> tuple[object, ...]:
        job, history = story.job.model_copy(update=changes), story.history
        overview = view_overview(job, history, given, story.events, now, story.telemetry)
        return (
            name,
            job,
            given,
            overview,
            view_trial_table(measure_trials(history), None),
            list_failures(history),
        )

    empty = replace(running, history=JobHistory(), events=())
    lost = "The agents of the gang were lost three times in a row. Look at /agents, then submit it again."
    lines = [
        view_job_line(running.job, None, running.history, now),
        view_job_line(finished.job, advice, None, now),
        view_job_line(finished.job, keep_defaults(advice), None, now),
        view_job_line(finished.job, leave_undecided(advice), None, now),
    ]
    lines += [
        view_job_line(running.job.model_copy(update={"state": state}), None, None, now)
        for state in (
            JobState.QUEUED,
            JobState.PAUSED,
            JobState.CANCELLING,
            JobState.FAILED,
            JobState.CANCELLED,
        )
    ]
    return {
        "chips": list_all_chips(),
        "jobs": lines,
        "pages": [
            page("a proven gain", finished, advice),
            page("no worthwhile gain", finished, keep_defaults(advice)),
            page("undecided", finished, leave_undecided(advice)),
            page("running", running),
            page("queued", empty, state=JobState.QUEUED, stage=Stage.PROBE),
            page("paused", empty, state=JobState.PAUSED, state_reason="Paused by ada."),
            page("failed", empty, state=JobState.FAILED, state_reason=lost),
            page("cancelled", empty, state=JobState.CANCELLED, state_reason="Cancelled by ada."),
        ],
        "trial": view_trial_page(finished.history.trial(5), finished.history),
        "agents": order_agents(make_agents(now)),
        "now": now,
    }
