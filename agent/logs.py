"""How the agent's log is written: lines for people, or JSON for programs, each with agent, job and session."""

from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor

from advisor.protocol.logs import LogFormat, escape_controls


def configure_logs(chosen: LogFormat, stream: TextIO, agent: str) -> None:
    """Let everything that this process logs go to `stream`; `agent` is its name, for lines that programs read."""

    def name_agent(_: object, __: str, line: EventDict) -> EventDict:
        return {"agent": agent, **line}

    shown: list[Processor] = (
        [
            name_agent,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        ]
        if chosen is LogFormat.JSON
        else [
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            _show_controls,
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


def _show_controls(_: object, __: str, line: EventDict) -> EventDict:
    return {name: escape_controls(value) if isinstance(value, str) else value for name, value in line.items()}
