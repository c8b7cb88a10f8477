"""The job that `advisor tune` works on: an unfinished one that is the same, one that gets more time, or a new one."""

import uuid
from pathlib import Path

from advisor.answers.wording import spell_duration
from advisor.cli.connection import resolve_job, unfinished_jobs
from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.screen import Screen
from advisor.cli.tuning.job_spec import WantedJob
from advisor.client import ApiProblem, Client
from advisor.local.record import tuning_words
from advisor.protocol.answers.advice import CONTINUE_S, Action
from advisor.protocol.asked.jobs import Continuation, Job, JobSpec, JobState
from advisor.protocol.views import JobQuery

_LOOKED_AT = 100
"""The newest jobs among which the one that was asked for may have its answer."""


def find_answered(client: Client, wanted: WantedJob, screen: Screen) -> Job | None:
    """Return the job that was asked for where it has its answer and nothing of the kind was begun since."""
    if wanted.spec is None or wanted.new:
        return None
    page = client.list_jobs(JobQuery(limit=_LOOKED_AT))
    job = next((job for job in page.items if _is_same(job, wanted.spec)), None)
    if job is None or job.state is not JobState.FINISHED:
        return None
    if client.advice(job.id).action is Action.MEND_SCRIPT:
        return None
    screen.tell(f"Job {job.id} ({job.spec.name}) has its answer. (--new measures again.)")
    return job


def obtain_job(
    client: Client, wanted: WantedJob, screen: Screen, alone: bool, on_nodes: Path | None = None
) -> Job:
    """Return the job to watch, resumed or submitted.

    `alone`: the server runs for this command only, so that another unfinished job is one that was interrupted;
    our agents would serve it first. `on_nodes`: the state of a command on nodes, where such a one is paused.
    Raises `CommandFailed` rather than measure something else than was asked.
    """
    # A job that is being cancelled does not go on.
    unfinished = [job for job in unfinished_jobs(client) if job.state is not JobState.CANCELLING]
    chosen: Job | None = None
    if (reference := wanted.more or wanted.resume) is not None:
        chosen = resolve_job(client, reference)
    elif not wanted.new and wanted.spec is not None:
        chosen = next((job for job in unfinished if _is_same(job, wanted.spec)), None)
    if alone:
        # A paused job is not measured: it stands in no way.
        others = [
            job
            for job in unfinished
            if job.state is not JobState.PAUSED and (chosen is None or job.id != chosen.id)
        ]
        _clear_the_way(client, others, wanted, screen, on_nodes)
    if chosen is not None:
        if wanted.more and chosen.state.is_final:
            return _continue(client, chosen, wanted, screen)
        if chosen.state is JobState.PAUSED:
            chosen = client.resume_job(chosen.id)
        if not chosen.state.is_final and chosen.state is not JobState.CANCELLING:
            screen.tell(f"Resuming job {chosen.id}: what it has measured is kept. (--new starts afresh.)")
            if wanted.more and wanted.more_seconds:
                screen.warn(
                    "It has not ended yet, so it goes on with the budget that it has. Continue it after that."
                )
        return chosen
    if wanted.spec is None:
        raise CommandFailed(
            Exit.USAGE, "There is neither a command nor a job to resume.", "advisor tune --help"
        )
    job = client.submit_job(wanted.spec, uuid.uuid4().hex)
    screen.tell(f"Job {job.id} ({job.spec.name}) is submitted.")
    return job


def _is_same(job: Job, wanted: JobSpec) -> bool:
    """Whether a job is what was asked for; one that was given more budget or another priority since is."""
    # The server does not show what was signed, and no two signatures are the same.
    wanted = wanted.model_copy(update={"signed": job.spec.signed, "priority": job.spec.priority})
    if not job.continued_at:
        return job.spec == wanted
    return job.spec.model_copy(update={"budget": wanted.budget}) == wanted


def _continue(client: Client, job: Job, wanted: WantedJob, screen: Screen) -> Job:
    seconds = wanted.more_seconds or _advised_seconds(client, job)
    more = Continuation(more_seconds=seconds, more_trials=wanted.more_trials)
    continued = client.extend_job(job.id, more, uuid.uuid4().hex)
    screen.tell(
        f"Continuing job {job.id} ({job.spec.name}) with {spell_duration(seconds)} more: what it has measured is kept."
    )
    return continued


def _advised_seconds(client: Client, job: Job) -> float:
    try:
        return client.advice(job.id).continue_s or CONTINUE_S
    except ApiProblem:
        return CONTINUE_S


def _clear_the_way(
    client: Client, others: list[Job], wanted: WantedJob, screen: Screen, on_nodes: Path | None
) -> None:
    if not others:
        return
    if wanted.pauses or ((on_nodes or wanted.resume is not None) and not wanted.new):
        # Each of two unfinished jobs would send its owner to the other.
        tune = tuning_words(on_nodes) if on_nodes else "tune"
        for job in others:
            client.pause_job(job.id)
            screen.tell(
                f"Paused the unfinished job {job.id} ({job.spec.name}); later: advisor {tune} --resume {job.id}"
            )
        return
    if wanted.new:
        for job in others:
            client.cancel_job(job.id)
            screen.tell(f"Gave up the unfinished job {job.id} ({job.spec.name}); what it measured is kept.")
        return
    first = others[0]
    raise CommandFailed(
        Exit.USAGE,
        f"Job {first.id} ({' '.join(first.spec.workload.command)}) was interrupted and would be measured first.",
        f"Finish it: advisor tune --resume {first.id}   Or give it up: repeat your command with --new.",
    )
