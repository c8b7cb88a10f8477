"""`advisor slurm tune`: one readable batch file around `advisor tune --here`, submitted."""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.options import screen_of
from advisor.cli.tuning.job_spec import name_command
from advisor.cli.tuning.strategy_files import name_directory
from advisor.cli.tuning.tune_words import FORWARDING, WORDS, join_words, split_words
from advisor.local.process import PYTHON

_AROUND_MIN = 4
"""Minutes of an allocation that are not for measuring: the start, leaving before its end, whole minutes of limits."""
_LEAST_MIN = _AROUND_MIN + 1


def build_app() -> typer.Typer:
    """Measure in allocations of Slurm."""
    app = typer.Typer(no_args_is_help=True)
    app.command("tune", context_settings=FORWARDING)(tune)
    return app


def tune(
    context: typer.Context,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the allocation.")],
    time: Annotated[int, typer.Option(min=1, help="Minutes of the allocation.")],
    sbatch: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTIONS", help="Your site's, e.g. '--partition=gpu --gpus-per-node=8'; repeatable."),
    ] = None,
    chain: Annotated[int, typer.Option(min=1, help="Allocations, each of which goes on where one ended.")] = 1,
    write: Annotated[Path | None, typer.Option(metavar="FILE", help="Only write the batch file.")] = None,
    words: WORDS = None,
) -> None:  # fmt: skip
    """Submit a tuning to Slurm: the options below, then those of `advisor tune`, then -- and the command of one node.

    advisor slurm tune --nodes 4 --time 30 --sbatch '--partition=gpu' --chain 3 -- torchrun --nproc-per-node 8 train.py

    Without --minutes the job takes the time of all allocations. The file can be submitted again: it goes on.
    """
    screen = screen_of(context)
    options, command = split_words(words or [], "slurm tune --nodes 2 --time 30")
    if time < _LEAST_MIN:
        raise CommandFailed(
            Exit.USAGE,
            f"--time {time}: an allocation of {time} min fits nothing: start and end take {_AROUND_MIN} min of it.",
            f"Give --time {_LEAST_MIN} or more.",
        )
    if chain > 1 and any(word.partition("=")[0] == "--continue" for word in options):
        raise CommandFailed(
            Exit.USAGE,
            f"--chain {chain} does not go with --continue: each allocation would give the job its minutes once more.",
            "Leave --chain out; or continue with one allocation, and submit the file again where its time was short.",
        )
    if not any(word.partition("=")[0] == "--minutes" for word in options):
        options = ["--minutes", str((time - _AROUND_MIN) * chain), *options]
    _prove(nodes, options, command)
    job = name_directory(name_command(command) if command else "continued").name
    site = [word for each in sbatch or () for word in ("--sbatch", each)]
    typed = shlex.join(["slurm", "tune", f"--nodes={nodes}", f"--time={time}", *site])
    path = write or Path(f"{job}.sbatch")
    path.write_text(_describe(job, nodes, time, sbatch or (), typed, join_words(options, command)))
    if write is not None:
        screen.tell(f"Written: {path}. Submit it: sbatch {path}")
        return
    for _ in range(chain):
        try:
            done = subprocess.run(["sbatch", "--parsable", path], check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise CommandFailed(
                Exit.INTERNAL,
                f"Slurm did not take {path}: {getattr(error, 'stderr', '') or error}".strip(),
                "Run this where sbatch works; your site's partition and account go into --sbatch.",
            ) from error
        number = done.stdout.strip().partition(";")[0]
        screen.print_text(number)
        screen.tell(f"Submitted {path} as {number}. Progress and answer: {job}-{number}.out")


def _prove(nodes: int, options: list[str], command: list[str]) -> None:
    """Raise `CommandFailed` where the job would fail at once when its turn has come, perhaps in days."""
    here = ("tune", "--here", "--prove", "--node-rank", "0", "--nodes", str(nodes))
    proven = subprocess.run(
        [*PYTHON, "-m", "advisor", *here, *join_words(options, command)],
        check=False,
        capture_output=True,
        text=True,
    )
    if proven.returncode:
        raise CommandFailed(
            Exit.INVALID_SPEC, "The job cannot start on its nodes.", "Correct it.", proven.stderr.strip()
        )


def _describe(job: str, nodes: int, time: int, given: Sequence[str], typed: str, words: Sequence[str]) -> str:
    program = Path(sys.executable).with_name("advisor")
    quoted = shlex.quote(typed) if set(typed) & set('"$`\\') else f'"{typed}"'
    site = "".join(f"#SBATCH {each}\n" for each in given)
    return f"""#!/bin/bash
# Made by `advisor slurm tune`. Submitted again, it goes on where the job was, and shows the answer where there is one.
#SBATCH --job-name={job} --output={job}-%j.out --chdir={shlex.quote(str(Path.cwd()))}
#SBATCH --nodes={nodes} --ntasks-per-node=1 --exclusive --time={time}
# One allocation after the other, and again after a preemption. Each stops a minute before its end by itself.
#SBATCH --dependency=singleton --requeue --open-mode=append
{site}
# One on each node, free to use all that the allocation has of it.
srun --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=0 \\
    {shlex.quote(str(program))} tune --here --started-by {quoted} \\
    {shlex.join(words)}
"""
