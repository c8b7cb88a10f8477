"""What a training with parameter servers says of itself: its variables, who sits where, and how they exchange."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, field_validator

from advisor.protocol.base import Message, Value
from advisor.protocol.kinds import Effect

Variable = tuple[str, Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]
"""Name, elements, and elements of one of its rows: a block holds whole rows."""
TABLE = "table"
"""The variable that a dense table is."""


class Architecture(StrEnum):
    """Who averages gradients."""

    SERVERS = "servers"
    """Parameter servers hold all variables."""
    COLLECTIVE = "collective"
    """Trainers reduce among themselves."""
    HYBRID = "hybrid"
    """Servers hold the rows of the table, trainers reduce everything else among themselves."""


class Mode(StrEnum):
    """When trainers wait for each other."""

    SYNC = "sync"
    ASYNC = "async"
    GEO = "geo"
    """Dense variables travel every `geo_k`-th step only."""


class Placement(StrEnum):
    """Which server holds a block."""

    ROUND_ROBIN = "round_robin"
    HASH_NAME = "hash_name"
    BY_BYTES = "by_bytes"
    """The largest block first, each to the server that holds least."""


class ServerPlace(StrEnum):
    """Where servers run."""

    APART = "apart"
    TOGETHER = "together"
    """On the trainers' nodes."""


class TableKind(StrEnum):
    """How the table travels."""

    ROWS = "rows"
    DENSE = "dense"


class ServerSetup(Message):
    """What may be varied; fields are called as the options of the bundled workload."""

    architecture: Architecture = Architecture.SERVERS
    servers: int = Field(default=1, ge=1, le=4096)
    place: ServerPlace = ServerPlace.APART
    placement: Placement = Placement.ROUND_ROBIN
    min_block: int = Field(default=8192, ge=0)
    """Elements of the smallest block that a variable is cut into; 0 leaves variables whole."""
    mode: Mode = Mode.SYNC
    geo_k: int = Field(default=1, ge=1)
    """Steps between two exchanges of dense variables; counts in geo only."""
    table: TableKind = TableKind.ROWS
    wire: int = Field(default=32, ge=1, le=64)
    """Bits of a number on the wire."""
    prefetch: bool = False
    """Rows of the next step are fetched during this one."""
    reduce_in_node: bool = False
    """Trainers of one node are summed up before one of them sends."""

    def under(self, changes: Mapping[str, Value]) -> Self:
        """Return the same with changes of these names; raises ValidationError for a value that means nothing."""
        known = {name: value for name, value in changes.items() if name in ServerSetup.model_fields}
        return type(self).model_validate({**self.model_dump(), **known}) if known else self

    def describe(self) -> str:
        """`2 servers apart`, `no servers`, `rows on 1 server apart, allreduce for the rest`."""
        if self.architecture is Architecture.COLLECTIVE:
            return "no servers"
        servers = f"{self.servers} server{'s' if self.servers != 1 else ''} "
        servers += "with the trainers" if self.place is ServerPlace.TOGETHER else "apart"
        if self.architecture is Architecture.SERVERS:
            return servers
        return f"rows on {servers}, allreduce for the rest"

    def find_effect(self, today: "ServerSetup") -> Effect:
        """Return what this may change besides the speed, against `today`."""
        learns = (("mode", Mode.SYNC), ("prefetch", False))
        if any(getattr(self, name) not in (getattr(today, name), plain) for name, plain in learns):
            return Effect.CONVERGENCE
        if self.mode is Mode.GEO and self.geo_k > today.geo_k:
            return Effect.CONVERGENCE
        return Effect.NUMERIC if self.wire < today.wire else Effect.EXACT


class ParameterServers(ServerSetup):
    """A training's variables and nodes beside its setup."""

    variables: tuple[Variable, ...] = ()
    """The dense ones in the order in which they are placed; without the table, whatever `table` says."""
    table_rows: int = Field(default=0, ge=0)
    """Rows of the table; 0 without one."""
    table_width: int = Field(default=0, ge=0)
    """Numbers in a row."""
    rows_per_step: float = Field(default=0.0, ge=0)
    """Different rows that one trainer looks up in a mean step."""
    trainer_nodes: tuple[int, ...] = Field(min_length=1)
    """Node of each trainer."""
    server_nodes: tuple[int, ...] = ()
    """Node of each server; empty where there are none."""
    nodes: int = Field(default=0, ge=0)
    """Nodes that trainers and servers share; 0: as many as they like."""
    compute_s: float = Field(default=0.0, ge=0)
    """Seconds of a step in which a trainer computes; 0: not known."""

    @field_validator("variables")
    @classmethod
    def _leave_out_table(cls, variables: tuple[Variable, ...]) -> tuple[Variable, ...]:
        return tuple(variable for variable in variables if variable[0] != TABLE)
