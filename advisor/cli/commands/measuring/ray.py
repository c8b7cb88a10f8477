"""`advisor ray tune`: `advisor tune --here` on nodes of a Ray cluster, until it or this command ends."""

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.interrupts import interruptible
from advisor.cli.options import screen_of
from advisor.cli.tuning.tune_words import FORWARDING, WORDS, join_words, split_words

_END_S = 20.0
"""The other nodes hear from node 0 that it has ended, and end in order; those that never found it do not."""


def build_app() -> typer.Typer:
    """Measure on nodes of a Ray cluster."""
    app = typer.Typer(no_args_is_help=True)
    app.command("tune", context_settings=FORWARDING)(tune)
    return app


def tune(
    context: typer.Context,
    nodes: Annotated[int | None, typer.Option(min=1, help="How many.", show_default="those with GPUs, or all")] = None,
    cpus: Annotated[int | None, typer.Option(min=1, help="Of each node.", show_default="all")] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="Of each node.", show_default="all")] = None,
    words: WORDS = None,
) -> None:  # fmt: skip
    """Tune on nodes of a Ray cluster: the options below, then those of `advisor tune`, then -- and one node's command.

    advisor ray tune --nodes 4 --minutes 30 -- torchrun --nproc-per-node 8 train.py

    Also as a Ray Job's entrypoint. RAY_ADDRESS names a cluster; without it, it is that of this machine.
    """
    screen = screen_of(context)
    options, command = split_words(words or [], "ray tune --nodes 2")
    given = {"--nodes": nodes, "--cpus": cpus, "--gpus": gpus}
    typed = ["ray", "tune", *(f"{flag}={value}" for flag, value in given.items() if value is not None)]
    try:
        import ray

        from advisor.here.ray_gang import RayGang, share_out
    except ImportError as error:
        raise CommandFailed(
            Exit.USAGE, "This Python has no Ray.", "Install it where advisor is: pip install ray", str(error)
        ) from error
    folder = Path.cwd()  # Ray unpacks a Ray Job's folder anew when its driver connects
    try:
        ray.init(os.environ.get("RAY_ADDRESS") or "auto", log_to_driver=False, logging_level="warning")
        with interruptible(), RayGang(share_out(nodes, cpus, gpus), screen.tell) as gang:
            patience_s = _END_S
            try:
                gang.start(["--started-by", shlex.join(typed), *join_words(options, command)], folder)
                while 0 not in gang.codes:
                    gang.look()
            except KeyboardInterrupt:
                screen.tell("Asked to stop: ending what runs on the nodes …")
                patience_s = 0.0
            gang.await_end(patience_s)
    except ConnectionError as error:
        hint = "Run this on one of its nodes or as a Ray Job, or name it in RAY_ADDRESS."
        raise CommandFailed(
            Exit.UNREACHABLE, "No Ray cluster answers on this machine.", hint, str(error)
        ) from error
    except ray.exceptions.RayError as error:
        hint = "The Python that Ray runs on every node needs fleet-advisor too."
        raise CommandFailed(
            Exit.INTERNAL, "An actor did not start on its node.", hint, str(error).strip()
        ) from error
    finally:
        ray.shutdown()
    raise typer.Exit(gang.codes.get(0, Exit.INTERRUPTED))
