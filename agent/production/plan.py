"""What a real training is to run under: the strategy's changes, split into the ranks' and the launch's part."""

import importlib.util
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from advisor.protocol.answers.strategy_file import StrategyFile, choose_at_launch, choose_changes
from advisor.protocol.base import Value
from advisor.protocol.knobs.catalogue import CATALOGUE, join_own
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.training.own_knobs import OwnKnob
from advisor.protocol.training.settling import list_unset, list_variables
from advisor.protocol.training.workload import WorkloadFacts, WorkloadKind
from agent.backends.injection import find_lost_paths
from agent.backends.own_knobs import settle_command
from agent.errors import Unlaunchable
from agent.production.beside import start_beside
from agent.runtime.inject.variables import UNCHANGED, put_under
from agent.runtime.link.environment import BASE

_TUNER_START_S = 60.0
RUNTIME = Path(__file__).parents[1] / "runtime"
_FORGETS_VARIABLES = {"mpirun", "mpiexec", "ssh", "docker", "podman"}
"""Launchers whose ranks do not get this process's environment by themselves."""


class Unusable(ValueError):
    """The strategy or the command cannot be used; the sentence names what is wrong and the remedy."""


@dataclass(frozen=True)
class Plan:
    """A strategy that can be put in force."""

    changes: Changes
    headline: str
    """What is going to be in force, for the terminal."""
    holds_for: WorkloadFacts | None = None
    """The training that it was measured on; None where nothing was measured."""
    baseline: Mapping[str, Value] = field(default_factory=dict)
    """What the script itself had when it was measured, for the changed knobs."""
    own: tuple[OwnKnob, ...] = ()
    """The training's own knobs."""
    least_samples_per_s: float | None = None
    """The lower end of the advised throughput; None where nothing like it was measured."""

    def settle(
        self, command: Sequence[str], working_dir: Path, folder: Path
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command with the training's own knobs in it, and the changed files that are to lie in `folder`.

        Raises Unusable naming the file, the key or the option that is missing.
        """
        if not self.own or not self.changes:
            return list(command), {}
        try:
            return settle_command(self.own, self.changes, command, working_dir, folder)
        except (Unlaunchable, ValueError) as error:
            raise Unusable(str(error)) from error

    def build_environment(
        self,
        variables: Mapping[str, str],
        report: Path | None,
        watch: Mapping[str, object] | None,
        *,
        tune: bool = False,
        copies: bool = False,
    ) -> dict[str, str]:
        """Return the environment of the user's command; unchanged where there is nothing to do.

        `watch`: where to write step times, and whom to tell when they rise. `copies`: whether rank 0's parameters are
        copied to all ranks where they ever drift apart.
        """
        if not self.changes and watch is None and not tune:
            return dict(variables)
        strategy: dict[str, object] = {
            "changes": self.changes,
            "holds_for": self.holds_for.model_dump(mode="json") if self.holds_for else {},
            "baseline": self.baseline,
            "own": [knob.name for knob in self.own],
        }
        if watch is not None:
            strategy["watch"] = {"low": self.least_samples_per_s, **watch}
        if tune:
            strategy["tune"] = True
            strategy["changes"] = {}
        if copies:
            strategy["copies_parameters"] = True
        if report is not None:
            strategy["report"] = str(report)
        catalogue, unset = join_own(self.own), list_unset(self.own, self.changes)
        variables = {name: text for name, text in variables.items() if name not in unset}
        at_launch = choose_at_launch(self.changes, self.holds_for, catalogue)
        under = put_under(
            str(RUNTIME),
            variables,
            strategy,
            at_launch,
            catalogue.list_variables(self.changes) | list_variables(self.own, self.changes),
        )
        return {**under, **({BASE: json.dumps(self.changes)} if tune and self.changes else {})}


def make_plan(file: StrategyFile | None, settings: Sequence[str], leave: Sequence[str]) -> Plan:
    """Return the plan of an advised strategy with further settings, or of settings alone. Raises Unusable."""
    if file is not None and file.kind is not WorkloadKind.PYTORCH:
        raise Unusable(
            f"This strategy is for a {file.kind.value} workload, whose program takes its settings itself: use the "
            f"run.sh or the Paddle files of `advisor export {file.job_id}`."
        )
    try:
        known = file.catalogue if file else CATALOGUE
        changes = choose_changes(file.changes if file else {}, settings, leave, known)
    except ValueError as error:
        raise Unusable(str(error)) from error
    if file is None:
        what = f"{changes.describe()}, as you set it: nothing is known of its gain."
        return Plan(changes, what if changes else "your settings as they are.")
    name = f"job {file.job_name or file.job_id} of {file.date:%Y-%m-%d}"
    if not changes:
        return Plan(changes, f"{name} {UNCHANGED}")
    is_as_advised = changes == file.changes
    return Plan(
        changes,
        f"{name}: {file.headline if is_as_advised else changes.describe() + ', which was not measured together'}",
        file.holds_for,
        {knob: file.baseline[knob] for knob in changes if knob in file.baseline},
        file.own,
        file.least_samples_per_s if is_as_advised else None,
    )


def start_tuner(
    plan: Plan, seconds: float, lost_s: float, left: Sequence[str], output: Path, command: Sequence[str]
) -> Path:
    """Start the process that tunes the training which this process is about to become; return its folder.

    It ends with the training. Raises Unusable where the extras that it needs are not installed.
    """
    if unknown := [name for name in left if name not in CATALOGUE]:
        raise Unusable(f"--leave {CATALOGUE.say_unknown(unknown)}.")
    missing = [
        name for name in ("optuna", "numpy", "psutil", "structlog") if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise Unusable(
            f"--tune needs {', '.join(missing)} on this node: pip install 'fleet-advisor[server,agent]'."
        )
    folder = Path(tempfile.mkdtemp(prefix="advisor-tune-"))
    arguments = {
        "folder": str(folder), "seconds": seconds, "lost_s": lost_s, "left": list(left), "output": str(output),
        "start": plan.changes, "own": plan.baseline,
    }  # fmt: skip
    asked = json.dumps({**arguments, "command": list(command)})
    if not start_beside("agent.production.tuner", asked, within_s=_TUNER_START_S):
        raise Unusable("The process that tunes did not start; what it said stands above.")
    return folder


def find_program(name: str, variables: Mapping[str, str]) -> str:
    """Return the path of the command's first word. Raises Unusable."""
    found = shutil.which(name, path=variables.get("PATH"))
    if found is None:
        raise Unusable(f"{name} was not found, or is not executable (PATH is {variables.get('PATH', '')}).")
    return found


def warn_of(command: Sequence[str], working_dir: Path) -> list[str]:
    """Return sentences about what may keep the strategy from the ranks."""
    warnings = [
        f"{name} seems to start Python without the variables it was given ({found}), so the strategy may not get into "
        "the ranks: write PYTHONPATH=…:$PYTHONPATH, and drop env -i and python's -E, -I and -S."
        for name, found in find_lost_paths(command, working_dir)
    ]
    launcher = Path(command[0]).name
    if launcher in _FORGETS_VARIABLES:
        warnings.append(
            f"{launcher} does not pass its environment on by itself: hand ADVISOR_RUN, ADVISOR_COLD, "
            "ADVISOR_RUNTIME and PYTHONPATH to the ranks (mpirun -x NAME, docker -e NAME), or put advisor run inside."
        )
    return warnings
