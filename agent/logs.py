"""How the agent's log is written: lines for people, or JSON for programs, each with agent, job and session."""

from enum import StrEnum
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor


class LogFormat(StrEnum):
    """Who reads the log."""

    TEXT = "text"
    """People."""
    JSON = "json"
    """Programs: an object a line."""


def configure_logs(chosen: LogFormat, stream: TextIO, agent: str) -> None:
    """Let everything that this process logs go to `stream`; `agent` is its name, for lines that programs read."""

    def name_agent(_: object, __: str, line: EventDict) -> EventDict:
        return {"agent": agent, **line}

    shown: list[Processor] = (
        [
            name_agent,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(ensure_ascii=False, default=str),
        ]
        if chosen is LogFormat.JSON
        else [
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            # A traceback with the values of its variables would hold tokens.
            structlog.dev.ConsoleRenderer(
                colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            *shown,
        ],
        logger_factory=lambda *_: structlog.PrintLogger(stream),
    )
