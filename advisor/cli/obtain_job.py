"""The job that `advisor tune` works on: an unfinished one that is the same, or a new one."""

import uuid
from dataclasses import dataclass

from advisor.cli.connection import all_jobs, resolve_job
from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.screen import Screen
from advisor.client import Client
from advisor.protocol.jobs import Job, JobSpec


@dataclass(frozen=True)
class WantedJob:
    """What was asked for: a job to resume by name, or a specification."""

    spec: JobSpec | None
    resume: str | None = None
    new: bool = False
    """Do not resume an unfinished job, and give up those that stand in the way."""


def obtain_job(client: Client, wanted: WantedJob, screen: Screen, alone: bool) -> Job:
    """Return the job to watch, resumed or submitted.

    `alone`: the server runs for this command only, so that another unfinished job is one that was interrupted;
    our agents would serve it first. Raises `CommandFailed` rather than measure something else than was asked.
    """
    jobs = all_jobs(client)
    unfinished = [job for job in jobs if not job.state.is_final]
    chosen: Job | None = None
    if wanted.resume is not None:
        chosen = resolve_job(client, wanted.resume)
    elif not wanted.new:
        chosen = next((job for job in unfinished if job.spec == wanted.spec), None)
    if alone:
        others = [job for job in unfinished if chosen is None or job.id != chosen.id]
        _clear_the_way(client, others, wanted.new, screen)
    if chosen is not None:
        if not chosen.state.is_final:
            screen.tell(f"Resuming job {chosen.id}: what it has measured is kept. (--new starts afresh.)")
        return chosen
    if wanted.spec is None:
        raise CommandFailed(
            Exit.USAGE, "There is neither a command nor a job to resume.", "advisor tune --help"
        )
    job = client.submit_job(wanted.spec, uuid.uuid4().hex)
    screen.tell(f"Job {job.id} ({job.spec.name}) is submitted.")
    return job


def _clear_the_way(client: Client, others: list[Job], give_up: bool, screen: Screen) -> None:
    if not others:
        return
    if give_up:
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
