"""The job that a race of two launches is: obtained, watched to its end, and answered."""

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from advisor.cli.exits import CommandFailed, exit_of_state
from advisor.cli.screen import Screen
from advisor.cli.tuning.job_options import TuneOptions
from advisor.cli.tuning.job_spec import WantedJob, spec_from_options
from advisor.cli.tuning.tune_anywhere import tune_anywhere
from advisor.cli.tuning.two_sides import Side
from advisor.protocol.answers.raced import RaceAnswer
from advisor.protocol.asked.jobs import Job, JobSpec, JobState
from advisor.protocol.kinds import Allow, Effect
from advisor.protocol.training.command_options import split_variables
from advisor.protocol.training.own_knob_texts import read_commands
from advisor.protocol.training.workload import WorkloadKind

if TYPE_CHECKING:  # It loads while server and agents start.
    from advisor.client import Client


@dataclass(frozen=True)
class AskedRace:
    """A question: is B faster than A?"""

    a: Side
    b: Side
    effect: Effect = Effect.CONVERGENCE
    minutes: float = 10.0
    min_gain: float = 1.0
    """Smallest difference worth telling, in percent."""
    nodes: int = 1
    kind: WorkloadKind = WorkloadKind.PYTORCH
    testbed: str | None = None
    name: str = "race"
    error: float = 0.05
    """Two-sided error of the verdict."""

    def build_spec(self) -> JobSpec:
        """Return the job. Raises `CommandFailed` (invalid spec)."""
        folder = self.a.folder
        # Where both are elsewhere than the job's folder, both are started in the same way.
        home = folder if self.b.folder == folder else folder.parent
        commands = [self.a.reach_from(home), self.b.reach_from(home)]
        own = read_commands(commands, self.effect)
        options = TuneOptions(
            name=self.name,
            minutes=self.minutes,
            allow=Allow(self.effect.value),
            nodes=self.nodes if self.testbed is None else None,
            testbed=self.testbed,
            kind=self.kind,
            min_gain=self.min_gain,
            from_checkpoint=self.effect is Effect.CONVERGENCE,
        )
        others = sorted({str(side.folder) for side in (self.a, self.b)} - {str(home)})
        held = {
            "workload": {"own": [own], "protect": tuple(others)},
            "verify": {own["name"]: "B"},
            "error": self.error,
        }
        # The knob's values hold each command with the variables in front of it: those of A are not B's.
        _, words = split_variables(shlex.split(commands[0]))
        return spec_from_options(words, options, home, held)


def run_race(
    wanted: WantedJob,
    finish: Callable[[RaceAnswer], None],
    screen: Screen,
    fail: Callable[[str], None] = lambda _: None,
) -> None:
    """Obtain the race's job, watch it to its end, and `finish` with its answer.

    A job that ends without an answer raises `CommandFailed`, after `fail` was told why.
    """

    def conclude(client: "Client", job: Job) -> None:
        if job.state is not JobState.FINISHED:
            failure = f"Job {job.id} {job.state.predicate}: {job.state_reason}"
            fail(failure)
            raise CommandFailed(exit_of_state(job.state), failure)
        finish(client.race_answer(job.id))

    tune_anywhere(wanted, None, conclude, os.environ, screen)
