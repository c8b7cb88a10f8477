"""Moments and spans of time as people type them: a date, a date and time, how long ago, how long."""

import math
import re
from datetime import UTC, datetime, timedelta

import typer

from advisor.cli.exits import CommandFailed, Exit
from advisor.protocol.allocation import read_span as read_seconds

_AGO = re.compile(r"(\d{1,6})([mhdw])")
_UNITS = {
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}


def read_moment(text: str, now: datetime) -> datetime:
    """Return the moment that `2026-11-20`, `2026-11-20T09:30` (UTC) or `7d` (ago) means.

    Raises `CommandFailed` (usage).
    """
    try:
        if ago := _AGO.fullmatch(text.strip()):
            return now - int(ago[1]) * _UNITS[ago[2]]
        moment = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError) as error:
        raise CommandFailed(
            Exit.USAGE,
            f"{text!r} is no moment.",
            "Write a date (2026-11-20), a time (2026-11-20T09:30, in UTC), or how long ago: 90m, 36h, 7d, 2w.",
        ) from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def read_span(text: str) -> float:
    """Return how many seconds `90s`, `30m`, `1h` or `7d` are. Raises typer.BadParameter."""
    try:
        return read_seconds(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def read_minutes(text: str) -> float:
    """Return how many minutes `5`, `2.5`, `90s`, `5m` or `2h` are. Raises typer.BadParameter."""
    try:
        minutes = float(text)
    except ValueError:
        try:
            minutes = read_seconds(str(text)) / 60.0
        except ValueError as error:
            raise typer.BadParameter(f"{text!r} is no time: write 5 (minutes), 90s, 5m or 2h.") from error
    if not 0.01 <= minutes < math.inf:
        raise typer.BadParameter(f"{text} is not in the range: 0.01 minutes at least.")
    return minutes
