"""The end of a tuning: the advice on the screen, its files on disk, the exit code; or why there is none."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import typer

from advisor.cli.exits import CommandFailed, Exit, exit_of_state
from advisor.cli.screen import Screen
from advisor.cli.tuning.strategy_files import default_directory, write_bundle
from advisor.cli.tuning.usage import describe_use
from advisor.cli.views.advice_view import describe_advice, render_advice
from advisor.client import Client
from advisor.local.record import pointing_at, tuning_words
from advisor.protocol.answers.advice import Action, Advice
from advisor.protocol.asked.jobs import Job, JobState
from advisor.protocol.culprit import excerpt_failure
from advisor.protocol.measured.trials import JobHistory


def conclude(
    client: Client,
    job: Job,
    output: Path | None,
    screen: Screen,
    trackers: Sequence[tuple[str, str]] = (),
    state: Path | None = None,
) -> None:
    """Show the result of a job that is over; raises `CommandFailed` when it has none.

    An answer that only says what fails in the script has a failed job's exit code; files that could not be written
    have one, too. `state`: the data directory of a command on nodes, which no other command looks into by itself.
    """
    if job.state is not JobState.FINISHED:
        # What the log says stands below the sentence where the job never trained.
        sentence, _, told = job.state_reason.partition("\n")
        has_failed = job.state is JobState.FAILED
        raise CommandFailed(
            exit_of_state(job.state),
            f"Job {job.id} {job.state.predicate}: {sentence or 'no reason was given.'}",
            f"Read the whole log: {pointing_at(state)}advisor logs {job.id}" if has_failed else "",
            told or (_excerpt_log(client.history(job.id)) if has_failed else ""),
        )
    advice = client.advice(job.id)
    directory = output or default_directory(job)
    files = _write_files(advice, job, directory, screen)
    if screen.json:
        screen.print_json(describe_advice(advice))
        screen.tell(f"Files written: {', '.join(files) or 'none'}")
    else:
        use = describe_use(advice, job, directory, is_written=bool(files))
        use = replace(use, page=next((file for file in files if file.endswith(".html")), ""))
        if state is not None:
            use = replace(use, before=pointing_at(state), tune=tuning_words(state))
        screen.show(render_advice(advice, job.spec.name or job.id, files, screen.verbose, use))
    if trackers:
        from advisor.cli.tuning.trackers import log_to_all

        log_to_all(trackers, client, job, advice, screen)
    if not files:
        raise typer.Exit(Exit.INTERNAL)
    if advice.action is Action.MEND_SCRIPT:
        raise typer.Exit(Exit.JOB_FAILED)


def _write_files(advice: Advice, job: Job, directory: Path, screen: Screen) -> list[str]:
    """Write the bundle; the advice is worth showing even where that fails."""
    try:
        return [str(path) for path in write_bundle(advice, job, directory)]
    except CommandFailed as failure:
        screen.warn(f"{failure.what} {failure.hint}")
        return []


def _excerpt_log(history: JobHistory) -> str:
    tails = [session.log_tail for session in history.sessions if session.log_tail]
    return excerpt_failure(tails[-1]) if tails else ""
