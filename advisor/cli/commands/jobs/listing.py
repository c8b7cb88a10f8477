"""`advisor jobs`: the jobs of a server, in lines of a table. What it reads is plain JSON, so that it starts at once."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advisor.answers.wording import spell_duration
from advisor.cli.connection import find_server, is_left_behind, look_at
from advisor.cli.moments import read_moment
from advisor.cli.options import JsonOption, screen_of
from advisor.client.answers import ApiProblem
from advisor.client.plain import Asker, Query, ask, fetch_jobs, understood
from advisor.protocol.gains import Quality, spell_likely
from advisor.protocol.states import STAGE_WORDS, JobState, Stage, Verdict

if TYPE_CHECKING:
    from rich.table import Table

_MOST = 20
_WHEN = "then: a date or time such as 2026-11-20 (UTC), or how long ago, such as 36h or 7d"


@dataclass(frozen=True)
class _Row:
    id: str
    name: str
    state: JobState
    stage: Stage
    nodes: int
    created_at: datetime
    command: str
    gain: Mapping[str, Any] | None
    """What it brings, once that was judged."""
    words: str
    """The same for people; empty before the job has finished."""


def list_jobs(
    context: typer.Context,
    state: Annotated[list[JobState] | None, typer.Option(help="Only jobs in this state; repeatable.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only jobs of this owner.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Only jobs of this name; 'train*' for all that begin so.")
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY[=VALUE]", help="Only jobs with this label; of several, with all of them."),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help=f"Only jobs submitted {_WHEN}, or later.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="WHEN", help=f"Only jobs submitted before {_WHEN}.")
    ] = None,
    archived: Annotated[bool, typer.Option("--archived", help="Archived jobs as well.")] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Most jobs to list.", show_default=str(_MOST))
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs, newest first."""
    screen = screen_of(context)
    now = datetime.now(UTC)
    given: dict[str, str | Sequence[str] | None] = {
        "state": state,
        "owner": owner,
        "name": name,
        "label": label,
        "created_since": since and _write_moment(since, now),
        "created_until": until and _write_moment(until, now),
        "archived": "true" if archived else None,
    }
    wanted: Query = {field: value for field, value in given.items() if value}
    with _asking(os.environ) as asked:
        jobs = fetch_jobs(asked, wanted, limit or _MOST)
        with understood():
            rows = [_read_row(job, _fetch_advice(asked, job)) for job in jobs]
    if as_json:
        told = [job | {"gain": row.gain} for job, row in zip(jobs, rows, strict=True)]
        screen.print_json({"items": told})
    elif not jobs and wanted:
        screen.tell("No job fits. `advisor jobs --archived` lists all of them.")
    elif not jobs:
        screen.tell("No jobs yet. Make one: advisor tune -- torchrun --nproc-per-node 2 train.py")
    elif screen.is_piped:
        for line in _list_as_tsv(rows, now):
            screen.print_list(line)
    else:
        screen.show(_make_table(rows, now))


@contextmanager
def _asking(environment: Mapping[str, str]) -> Iterator[Asker]:
    """Offer what answers from the server, or from the database that a tuning of this machine has left behind."""
    if not is_left_behind(environment):
        url, token = find_server(environment)
        yield partial(ask, url, token)
        return
    with look_at(environment) as reader:
        from advisor.protocol.views import JobQuery

        def read(path: str, query: Query) -> Any:
            _, _, *about = path.split("/")
            found = reader.advice(about[0]) if about else reader.list_jobs(JobQuery.model_validate(query))
            return found.model_dump(mode="json")

        yield read


def _fetch_advice(asked: Asker, job: Mapping[str, Any]) -> Any:
    """A list that lacks one gain is better than none: an answer that cannot be had is left out."""
    if job.get("state") != JobState.FINISHED:
        return None
    try:
        return asked(f"/jobs/{job['id']}/advice", {})
    except ApiProblem:
        return None


def _read_row(job: Mapping[str, Any], advice: Mapping[str, Any] | None) -> _Row:
    spec = job["spec"]
    gain, words = None, ""
    if advice is not None:
        verdict, gain = Verdict(advice["verdict"]), advice["gain"]
        words = "keep yours" if verdict is Verdict.KEEP else "undecided"
        if verdict is Verdict.CHANGE and gain is not None:
            words = spell_likely(gain["ratio"], gain["low"], gain["high"])
    return _Row(
        id=job["id"],
        name=spec["name"],
        state=JobState(job["state"]),
        stage=Stage(job["stage"]),
        nodes=spec["nodes"],
        created_at=datetime.fromisoformat(job["created_at"]),
        command=" ".join(spec["workload"]["command"]),
        gain=gain,
        words=words,
    )


def _write_moment(text: str, now: datetime) -> str:
    return read_moment(text, now).isoformat().replace("+00:00", "Z")


def _list_as_tsv(rows: Sequence[_Row], now: datetime) -> list[str]:
    """Tab-separated lines under a header, for other programs: figures without words, seconds."""
    lines = ["id\tname\tstate\tgain\tgain_low\tgain_high\tnodes\tage_s\tcommand"]
    for row in rows:
        gain, figures = row.gain, ("", "", "")
        if gain is not None and gain["quality"] == Quality.KNOWN:
            figures = (f"{gain['ratio']:.4f}", f"{gain['low']:.4f}", f"{gain['high']:.4f}")
        age = f"{(now - row.created_at).total_seconds():.0f}"
        fields = (row.id, row.name, row.state, *figures, row.nodes, age, row.command)
        lines.append("\t".join(" ".join(str(field).split()) for field in fields))
    return lines


def _make_table(rows: Sequence[_Row], now: datetime) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    table.add_column("id", no_wrap=True)
    table.add_column("name", no_wrap=True, overflow="ellipsis", max_width=24)
    table.add_column("state", overflow="fold")
    table.add_column("gain", no_wrap=True)
    table.add_column("nodes", no_wrap=True, justify="right")
    table.add_column("age", no_wrap=True, justify="right")
    table.add_column("command", no_wrap=True, overflow="ellipsis", ratio=1)
    for row in rows:
        state = f"running: {STAGE_WORDS[row.stage]}" if row.state is JobState.RUNNING else str(row.state)
        age = spell_duration((now - row.created_at).total_seconds())
        table.add_row(row.id, row.name, state, row.words, str(row.nodes), age, Text(row.command))
    return table
