"""How long this node is there: as it was typed (`90s`, `1h`), or as Slurm tells of the agent's allocation."""

import logging
import re
import subprocess
from collections.abc import Callable, Mapping

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def read_span(text: str) -> float:
    """Return how many seconds `90s`, `30m`, `1h` or `7d` are; raises ValueError with a sentence."""
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smhd])", text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no span of time: write 90s, 30m, 1h or 7d.")
    return float(found[1]) * _SECONDS[found[2]]


_ASK_S = 10.0
"""Slurm's controller answers within milliseconds, or is not there."""
_LEFT = re.compile(r"(?:(\d{1,6})-)?(?:(\d{1,2}):)?(\d{1,2}):(\d{2})")

_log = logging.getLogger(__name__)


def ask_squeue(job_id: str) -> str:
    """Return the time that Slurm says is left to a job, as it writes it; "" where it cannot be asked."""
    command = ["squeue", "--noheader", "--jobs", job_id, "--format=%L"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return asked.stdout.strip()


def find_seconds_left(
    typed: str | None, environment: Mapping[str, str], now_s: float, ask: Callable[[str], str] = ask_squeue
) -> float | None:
    """Return the seconds until this node's allocation ends; None where it does not, or where no variable says so.

    Newer releases of Slurm put the end into the environment, as a time of the cluster's clocks, which is held against
    this node's, `now_s`, at once. Others (22.05) do not: there `ask` tells what is left. Raises ValueError, with a
    sentence, for a typed span that is none.
    """
    from advisor.protocol.measured.messages import MOST_SECONDS  # every message: spans are read without them

    if typed == "never":
        return None
    if typed is not None:
        return read_span(typed)
    end, job_id = environment.get("SLURM_JOB_END_TIME", ""), environment.get("SLURM_JOB_ID", "")
    if end.isascii() and end.isdigit():
        return min(max(0.0, int(end[:12]) - now_s), MOST_SECONDS)
    if not (job_id.isascii() and job_id.isdigit()):
        return None
    told = ask(job_id)
    if (found := _LEFT.fullmatch(told)) is not None:
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return min(float(((days * 24 + hours) * 60 + minutes) * 60 + seconds), MOST_SECONDS)
    if told != "UNLIMITED":
        _log.warning("Slurm does not say when allocation %s ends: --ends-in 2h tells the server.", job_id)
    return None
