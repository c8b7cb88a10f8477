"""What the shell completes: names of knobs and formats, and the jobs of the server where it answers at once."""

import os
from functools import partial

_PATIENCE_S = 1.0
"""Who presses a key waits no longer for a server."""
_MOST = 50


def complete_knob(incomplete: str) -> list[tuple[str, str]]:
    """Return the knobs whose names begin so, each with its meaning."""
    from advisor.protocol.knobs.catalogue import CATALOGUE

    begin = incomplete.casefold()
    return [(name, knob.meaning) for name, knob in CATALOGUE.items() if name.casefold().startswith(begin)]


def complete_values(incomplete: str) -> list[tuple[str, str]]:
    """Return `KNOB=` for the knobs whose names begin so."""
    return [(f"{name}=", meaning) for name, meaning in complete_knob(incomplete)]


def complete_format(incomplete: str) -> list[tuple[str, str]]:
    """Return the formats of `advisor export` whose names begin so."""
    from advisor.exporters.formats import BUNDLE, FORMATS

    told = {
        BUNDLE: "what this training loads, and a report",
        **{name: made.meaning for name, made in FORMATS.items()},
    }
    return [(name, title) for name, title in told.items() if name.startswith(incomplete)]


def complete_job(incomplete: str) -> list[tuple[str, str]]:
    """Return ids and names of jobs that begin so, newest first; nothing where no server answers at once."""
    from advisor.cli.connection import find_server
    from advisor.cli.exits import explain_failure
    from advisor.client.plain import ask, fetch_jobs

    try:
        asked = partial(ask, *find_server(os.environ), timeout_s=_PATIENCE_S)
        jobs = fetch_jobs(asked, {}, _MOST)
    except Exception as error:
        # A completion that complains would write over the line that is being typed.
        if explain_failure(error) is None:
            raise
        return []
    found = [(job["id"], f"{job['spec']['name']}, {job['state']}") for job in jobs]
    found += [("last", "the newest job")] if jobs else []
    return [(word, told) for word, told in found if word.startswith(incomplete)]
