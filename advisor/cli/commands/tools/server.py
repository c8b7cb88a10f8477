"""The MCP server of `advisor mcp`: the tools with what they take, one call that measures at a time."""

import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent, Tool, ToolAnnotations
from pydantic import Field, ValidationError

from advisor import __version__
from advisor.cli.commands.tools.told import (
    Describe,
    Told,
    describe_content,
    describe_diagnosis,
    describe_files,
    describe_lab,
    describe_race,
    describe_tuning,
    describe_verification,
    read_ended,
)
from advisor.cli.commands.tools.verb import run_verb
from advisor.protocol.near_names import find_nearest
from advisor.protocol.reading import describe_faults

_INSTRUCTIONS = """Measures distributed trainings, unchanged, and says what is faster with a 95 % interval.
Where does the time go: diagnose. Is B faster than A: race. Find faster settings: tune, then export. Does a strategy
still hold: verify. Of many ideas: `advisor lab open` in a shell, then race with lab for each, lab_adopt for one whose
gain was told. A verdict `undecided` is no gain and no loss: give it more minutes, or leave the script as it is.
Calls last minutes: they report progress, and cancelling one ends the training that it started."""

Command = Annotated[
    str, Field(description="A launch command as typed in a shell, e.g. torchrun --nproc-per-node 2 train.py")
]
Minutes = Annotated[float, Field(gt=0, description="Most minutes to measure.")]
Folder = Annotated[
    str, Field(description="The folder to start it in; relative to the server's own, which it is by default.")
]
LabFolder = Annotated[str, Field(description="The folder whose .advisor/ holds the lab.")]
EffectOfB = Literal["exact", "numeric", "convergence"]
Kind = Literal["pytorch", "command", "paddle"]


class Tools:
    """What may be called. `environment` is that of every process, `here` the folder of calls that name none."""

    def __init__(self, environment: Mapping[str, str], here: Path) -> None:
        self._environment = environment
        self._here = here
        self._turn = anyio.Lock()

    async def diagnose(
        self,
        context: Context,
        command: Command,
        samples_per_step: Annotated[
            int | None, Field(ge=1, description="Samples of one process's forward pass; observed by default.")
        ] = None,
        working_dir: Folder = ".",
    ) -> CallToolResult:
        """Say where a training's time goes, in under a minute: it is started once as it stands, timed and ended."""
        words = ["diagnose", "--json"]
        if samples_per_step is not None:
            words.append(f"--samples-per-step={samples_per_step}")
        typed = _split(command)
        return await self._call(context, [*words, "--", *typed], working_dir, describe_diagnosis(typed))

    async def race(
        self,
        context: Context,
        b: Annotated[str, Field(description="Launch command B, the one that may be faster.")],
        a: Annotated[str, Field(description="Launch command A, the one in use; in a lab it has none.")] = "",
        minutes: Minutes = 10.0,
        effect: Annotated[
            EffectOfB,
            Field(
                description="What B changes besides the speed; all but exact must learn no worse at equal samples."
            ),
        ] = "convergence",
        min_gain: Annotated[
            float, Field(ge=0, description="Smallest gain worth a change, in percent.")
        ] = 1.0,
        nodes: Annotated[int, Field(ge=1, description="Machines that train together.")] = 1,
        kind: Annotated[Kind, Field(description="How they are started and measured.")] = "pytorch",
        lab: LabFolder | None = None,
        idea: Annotated[str, Field(description="In a lab: what B tries, in words.")] = "",
        by: Annotated[str, Field(description="In a lab: who asks.")] = "",
        working_dir: Folder = ".",
    ) -> CallToolResult:
        """Say which of two launch commands trains faster: launched in turns, with a 95 % interval, losses guarded.

        In a lab A is its baseline, and the race counts towards the lab's errors whatever becomes of it.
        """
        options: dict[str, object] = {"minutes": minutes, "effect": effect, "min-gain": min_gain}
        options |= {"nodes": nodes, "kind": kind} if lab is None else {"lab": lab, "idea": idea, "by": by}
        words = ["race", "--json", *_spell(options), "--", *filter(None, (a, b))]
        return await self._call(context, words, working_dir, describe_race, minutes)

    async def lab_status(
        self, context: Context, lab: LabFolder = ".", working_dir: Folder = "."
    ) -> CallToolResult:
        """Say of a lab what was asked, what was told, what is left, and what the next race may spend."""
        words = ["lab", "status", "--json", *_spell({"lab": lab})]
        told = describe_lab(self._here / working_dir / lab)
        return await self._call(context, words, working_dir, told, measures=False)

    async def lab_adopt(
        self,
        context: Context,
        race: Annotated[int, Field(ge=1, description="The number that it has in the lab.")],
        minutes: Minutes = 10.0,
        by: Annotated[str, Field(description="Who asks.")] = "",
        lab: LabFolder = ".",
        working_dir: Folder = ".",
    ) -> CallToolResult:
        """Race a told gain again, in fresh launches against today's baseline; where it holds, it is the baseline."""
        words = ["lab", "adopt", "--json", *_spell({"minutes": minutes, "by": by, "lab": lab}), str(race)]
        return await self._call(context, words, working_dir, describe_race, minutes)

    async def tune(
        self,
        context: Context,
        command: Command,
        minutes: Minutes = 30.0,
        allow: Annotated[
            Literal["bitwise", "exact", "numeric", "convergence"],
            Field(description="What a change may cost besides nothing: exact keeps the mathematics."),
        ] = "exact",
        nodes: Annotated[int, Field(ge=1, description="Machines that train together.")] = 1,
        working_dir: Folder = ".",
    ) -> CallToolResult:
        """Find the fastest safe settings of a training; writes its files into advisor-NAME beside the script.

        A call that was cancelled goes on where it was when it is made again.
        """
        options = {"minutes": minutes, "allow": allow, "nodes": nodes}
        words = ["tune", "--json", *_spell(options), "--", *_split(command)]
        return await self._call(context, words, working_dir, describe_tuning, minutes)

    async def verify(
        self,
        context: Context,
        command: Command,
        strategy: Annotated[str, Field(description="Path of a strategy.json or another exported file.")] = "",
        settings: Annotated[
            list[str] | None, Field(description="KNOB=VALUE, beside the file's or instead of one.")
        ] = None,
        fail_below: Annotated[
            float | None, Field(gt=0, description="Ratio that must be reached: 1.05 is 5 % faster.")
        ] = None,
        minutes: Minutes = 5.0,
        working_dir: Folder = ".",
    ) -> CallToolResult:
        """Measure today what a strategy brings here: it races the script as it stands."""
        words = ["verify", "--json", *_spell({"minutes": minutes, "fail-below": fail_below})]
        words += [f"--set={setting}" for setting in settings or ()]
        words += ["--", *([strategy] if strategy else []), *_split(command)]
        return await self._call(context, words, working_dir, describe_verification, minutes)

    async def export(
        self,
        context: Context,
        job: Annotated[str, Field(description="A job's id or name, or `last`.")],
        format: Annotated[
            str, Field(description="bundle, json, torchrun, accelerate, deepspeed, …")
        ] = "bundle",
        working_dir: Folder = ".",
    ) -> CallToolResult:
        """Give the advised strategy of a job in a framework's format; a bundle is written into advisor-NAME."""
        if format == "bundle":
            told = describe_files(self._here / working_dir)
            return await self._call(
                context, ["export", "--json", "--", job], working_dir, told, measures=False
            )
        with tempfile.TemporaryDirectory(prefix="advisor-mcp-") as folder:
            words = ["export", "--json", *_spell({"format": format, "output": folder}), "--", job]
            return await self._call(context, words, working_dir, describe_content, measures=False)

    async def _call(
        self,
        context: Context,
        words: Sequence[str],
        folder: str,
        describe: Describe,
        minutes: float | None = None,
        measures: bool = True,
    ) -> CallToolResult:
        place = self._here / folder
        if not place.is_dir():
            return _answer(Told((f"working_dir: {place} is no folder.",), {"exit_code": 2}, is_error=True))

        async def tell(seconds: float, line: str) -> None:
            await context.report_progress(seconds, minutes and minutes * 60, line)

        turn = self._turn if measures else anyio.Lock()
        if turn.locked():
            await context.report_progress(0, None, "Another call measures; this one waits for its end.")
        async with turn:
            return _answer(read_ended(await run_verb(words, place, self._environment, tell), describe))


class _Server(MCPServer):  # type: ignore[misc]
    """Says which argument is wrong, and what a tool takes."""

    async def list_tools(self) -> list[Tool]:
        tools: list[Tool] = await super().list_tools()
        for tool in tools:
            tool.input_schema = {**tool.input_schema, "additionalProperties": False}
        return tools

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        known = {tool.name: list(tool.input_schema["properties"]) for tool in await self.list_tools()}
        for argument in arguments if name in known else ():
            if argument not in known[name]:
                near = find_nearest(argument, known[name])
                meant = f" Did you mean {near[0]}?" if near else ""
                raise ToolError(f"{name} takes no {argument}, but {', '.join(known[name])}.{meant}")
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if isinstance(error.__cause__, ValidationError):
                raise ToolError(f"{name}: {describe_faults(error.__cause__)}.") from error
            raise


def build_server(environment: Mapping[str, str], here: Path) -> MCPServer:
    """Return the server with its tools."""
    server = _Server(
        "fleet-advisor",
        title="Fleet Advisor",
        instructions=_INSTRUCTIONS,
        version=__version__,
        log_level="WARNING",
        subscriptions=False,
    )
    tools = Tools(environment, here)
    hints = ToolAnnotations(destructive_hint=False, idempotent_hint=False, open_world_hint=False)
    for tool in (
        tools.diagnose, tools.race, tools.tune, tools.verify, tools.lab_status, tools.lab_adopt, tools.export,
    ):  # fmt: skip
        server.add_tool(tool, annotations=hints)
    return server


def _spell(options: Mapping[str, object]) -> list[str]:
    """Each as one word, so that no value is taken for an option."""
    return [f"--{name}={value}" for name, value in options.items() if value is not None]


def _split(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ToolError(f"The command {command!r} cannot be read: {error}.") from error
    if not words:
        raise ToolError("The command is empty: give it as it is typed in a shell.")
    return words


def _answer(told: Told) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(type="text", text=told.text)],
        structured_content=told.json,
        is_error=told.is_error,
    )
