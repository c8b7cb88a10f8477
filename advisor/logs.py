"""How the server's log is written: lines for people, or JSON for programs, each with what it is about."""

import logging
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor

from advisor.protocol.logs import LogFormat, escape_controls

REQUESTS = "advisor.requests"
"""The logger with a line for every request."""


def configure_logs(chosen: LogFormat, stream: TextIO) -> None:
    """Let everything that this process logs go to `stream`. For the process that serves, once, before it does."""
    as_json = chosen is LogFormat.JSON
    stamp: Processor = structlog.processors.TimeStamper(
        fmt="iso" if as_json else "%Y-%m-%d %H:%M:%S", utc=as_json
    )
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        stamp,
        _drop_colours,
    ]
    if as_json:
        shared.append(structlog.stdlib.add_logger_name)
    shown: list[Processor] = (
        [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        ]
        if as_json
        # A traceback with the values of its variables would hold tokens.
        else [
            _show_controls,
            structlog.dev.ConsoleRenderer(
                colors=stream.isatty(), pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
            ),
        ]
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *shown],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    # Idle agents ask several times a minute: too much for who reads along.
    logging.getLogger(REQUESTS).setLevel(logging.INFO if as_json else logging.WARNING)
    for chatty in ("httpx", "httpcore", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def _drop_colours(_: object, __: str, line: EventDict) -> EventDict:
    """The server library adds its sentence once more, as a terminal shows it."""
    line.pop("color_message", None)
    return line


def _show_controls(_: object, __: str, line: EventDict) -> EventDict:
    return {name: escape_controls(value) if isinstance(value, str) else value for name, value in line.items()}
