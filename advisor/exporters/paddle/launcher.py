"""`paddle_servers.py`: starts the servers and trainers of a Paddle training, as many as advised, and ends the servers.

It is the bundled launcher (`agent/workloads/paddle_servers.py`) with the advised numbers in it.
"""

from pathlib import Path

from advisor.exporters.comments import comment, head_lines
from advisor.exporters.exported import Exported, ExportError
from advisor.exporters.paddle.servers import (
    ELSEWHERE,
    GEO_K,
    MIN_BLOCK,
    MODE,
    PLACEMENT,
    SERVERS,
    TRAINERS,
    VARIABLES,
    VERSION,
    list_warnings,
    read_setup,
)
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job
from advisor.protocol.training.own_knobs import spell
from advisor.protocol.training.parameter_servers import Mode

_SOURCE = Path(__file__).parents[3] / "agent" / "workloads" / "paddle_servers.py"
_NUMBERS, _EMPTY = "SERVERS, TRAINERS = 1, 2\n", "VARIABLES: dict[str, str] = {}\n"
KNOBS = (SERVERS, *VARIABLES)
_NOT_HERE = {
    **dict.fromkeys((MODE, GEO_K), "paddle_strategy.py has it (format paddle-python)."),
    **dict.fromkeys((PLACEMENT, MIN_BLOCK), ELSEWHERE[PLACEMENT]),
    **dict.fromkeys(VARIABLES, "Geo's communicator alone reads it."),
}
NO_SERVERS = "The advised architecture has no parameter servers: start trainers only."


def export_paddle_servers(advice: Advice, job: Job) -> Exported:
    """Return the launcher; raises ExportError where the advised architecture has no servers."""
    setup = read_setup(advice, job)
    if setup is None:
        raise ExportError(NO_SERVERS)
    servers = setup.count(SERVERS) or 1
    trainers = setup.count(TRAINERS) or (job.facts.world_size if job.facts else 2)
    # What the variables set is read by geo's communicator only, and only what was varied is set.
    told = [name for name in VARIABLES if setup.mode is Mode.GEO and name in setup.varied]
    variables = {VARIABLES[name]: spell(setup.values[name]) for name in told}
    names = [*([SERVERS] if setup.count(SERVERS) else []), *told]
    provenance = {name: setup.provenance_of(name) for name in names}
    unmapped = {
        name: _NOT_HERE.get(name, "The launcher has no such setting.")
        for name in advice.changes
        if name not in provenance
    }
    warnings = [
        *list_warnings(setup, VERSION),
        "One machine. On several, Paddle's own launcher starts the same roles, and its servers have to be ended by "
        "hand: fleetrun --servers IP:PORT,IP:PORT --trainers IP:PORT,IP:PORT train.py",
    ]
    title = f"Servers and trainers for PaddlePaddle {VERSION}: python paddle_servers.py -- python train.py"
    head = comment(head_lines(advice, job, title, provenance, warnings, unmapped))
    source = _SOURCE.read_text(encoding="utf-8")
    source = source.replace(_NUMBERS, f"SERVERS, TRAINERS = {servers}, {trainers}\n")
    source = source.replace(_EMPTY, f"VARIABLES: dict[str, str] = {variables!r}\n")
    return Exported(
        format="paddle-servers",
        target=VERSION,
        filename="paddle_servers.py",
        media_type="text/x-python; charset=utf-8",
        content=head + source,
        provenance=provenance,
        unmapped=unmapped,
        warnings=tuple(warnings),
    )
