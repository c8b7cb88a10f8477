"""Parameter servers, or none, from figures alone: what `advisor predict` says before anything was measured."""

import math
import re
from pathlib import Path

import typer

from advisor.protocol.answers.forecast import SetupForecast
from advisor.protocol.kinds import Allow
from advisor.protocol.nodes.testbed import read_link_rate
from advisor.protocol.training.parameter_servers import ParameterServers, Variable
from advisor.tuning.model.map_fit import band_of

_SHAPE = re.compile(r"\d{1,13}(?:x\d{1,13}){0,7}")
_EXAMPLE = "256x1024,1024,bias=64"
_FIGURES_ONLY = (
    "Nothing was measured: bytes over the links' rate and the computing that was given, without what calls and copies "
    "take (some 30 ms a step for 2 MB on two CPU cores). The order of near neighbours may be another; a job with "
    "the clone's `examples/servers`, or your own program, is the proof."
)


def read_variables(text: str) -> tuple[Variable, ...]:
    """Return what `256x1024,bias=1024` means, or a file of such by `@FILE`. Raises BadParameter."""
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(f"--variables: {text[1:]} cannot be read: {error}.") from error
    found: dict[str, Variable] = {}
    for part in re.split(r"[,\s]+", text.strip()):
        name, shape = part.rpartition("=")[::2]
        name = name or f"variable{len(found)}"
        if name in found:
            raise typer.BadParameter(f"--variables: {name} is given twice: call variables differently.")
        sizes = _read_shape("--variables", shape, _EXAMPLE)
        found[name] = (name, math.prod(sizes), math.prod(sizes[1:]))
    return tuple(found.values())


def predict_from_figures(
    variables: str, table: str | None, ids: int | None, trainers: int | None, nodes: int | None, rate: str | None,
    compute_s: float, memory_gib: float | None,
) -> tuple[tuple[SetupForecast, ...], str]:  # fmt: skip
    """Return setups for such a model, against one server apart, and what to say of them. Raises BadParameter."""
    # The cost model's libraries are large: they load where they are used.
    from advisor.tuning.explain.server_forecast import (
        compare_architectures,
        describe_memory,
        describe_waiting,
        list_setups,
    )
    from advisor.tuning.model.parameter_servers import ServerModel, lay_out

    if rate is None:
        raise typer.BadParameter(
            "Give --rate, what each node's link carries: without a measured job nothing tells it."
        )
    try:
        bits_per_s = read_link_rate(rate)
    except ValueError as error:
        raise typer.BadParameter(f"--rate: {error}.") from error
    nodes = nodes or trainers or 2
    count = trainers or nodes
    if count < nodes:
        raise typer.BadParameter(
            f"--trainers {count} are fewer than --nodes {nodes}: give a trainer to each node."
        )
    rows, width = 0, 0
    if table is not None:
        sizes = _read_shape("--table", table, "20000x32")
        if len(sizes) != 2 or ids is None:
            raise typer.BadParameter(
                "--table needs rows x width, for example 20000x32, and --ids, how many a trainer looks up in a step."
            )
        rows, width = sizes
    today = lay_out(
        ParameterServers(
            variables=read_variables(variables),
            table_rows=rows,
            table_width=width,
            # Different ones of ids drawn evenly: each row is missed with the chance (1 - 1/rows)^ids.
            rows_per_step=rows * -math.expm1((ids or 0) * math.log1p(-1.0 / rows)) if rows > 1 else rows,
            trainer_nodes=tuple(trainer * nodes // count for trainer in range(count)),
            compute_s=compute_s,
            reduce_in_node=count > nodes,  # As Fluid does with several GPUs of a node.
        )
    )
    model = ServerModel(bits_per_s / 8)
    memory_bytes = math.inf if memory_gib is None else memory_gib * 2**30
    setups, band = list_setups(today, model, memory_bytes), band_of(model.residual)
    said = (
        compare_architectures(setups, Allow.EXACT, band),
        describe_waiting(setups, band),
        describe_memory(setups, memory_bytes),
        _FIGURES_ONLY,
    )
    return setups, " ".join(filter(None, said))


def _read_shape(option: str, text: str, example: str) -> tuple[int, ...]:
    if not _SHAPE.fullmatch(text):
        raise typer.BadParameter(
            f"{option}: {text!r} is no shape: write numbers with x between them, as in {example}."
        )
    shape = tuple(map(int, text.split("x")))
    if not 0 < math.prod(shape) <= 10**13:
        raise typer.BadParameter(f"{option}: {text!r} has {math.prod(shape)} numbers: give from 1 to 10^13.")
    return shape
