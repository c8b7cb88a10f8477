"""The options of the command line, what they exclude, and which of them change nothing beside others."""

import argparse
import os

from .placement import RULES

_ENVIRONMENT = os.environ


def read_options() -> argparse.Namespace:
    """Return the checked options; where they contradict each other, end with a sentence and exit code 2."""
    parser = _describe()
    options = parser.parse_args()
    options.trainer_nodes = options.trainer_nodes or -(-options.nodes // 2)
    for is_wrong, sentence in _list_contradictions(options):
        if is_wrong:
            parser.error(sentence)
    return options


def _describe() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m parameter_server",
        description="Trains a recommender with parameter servers, over collectives, or both.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    how = parser.add_argument_group("how gradients and parameters travel")
    how.add_argument(
        "--architecture", choices=("servers", "collective", "hybrid"), default="servers",
        help="hybrid: the table's rows on servers, an allreduce for everything else",
    )  # fmt: skip
    how.add_argument("--servers", type=int, default=1)
    how.add_argument("--place", choices=("apart", "together"), default="apart", help="servers and trainers")
    how.add_argument("--placement", choices=RULES, default="round_robin", help="of blocks on servers")
    how.add_argument("--min-block", type=int, default=8192, help="elements; 0: whole variables")
    how.add_argument("--mode", choices=("sync", "async", "geo"), default="sync")
    how.add_argument("--geo-k", type=int, default=10, help="steps between two exchanges in geo")
    how.add_argument("--table", choices=("rows", "dense"), default="rows", help="what of the table travels")
    how.add_argument("--prefetch", type=int, choices=(0, 1), default=0, help="rows of the next batch")
    how.add_argument("--wire", type=int, choices=(32, 16), default=32, help="bits of a number that travels")
    how.add_argument(
        "--reduce-in-node",
        type=int,
        choices=(0, 1),
        default=0,
        help="one trainer of each node sends the sum of all of them",
    )
    how.add_argument("--rpc-threads", type=int, default=8, help="that answer messages, in each process")

    what = parser.add_argument_group("what is trained")
    what.add_argument("--trainers", type=int, default=2)
    what.add_argument("--batch", type=int, default=32, help="samples of one trainer and step")
    what.add_argument("--fields", type=int, default=8, help="ids of a sample")
    what.add_argument("--rows", type=int, default=20_000, help="of the table")
    what.add_argument("--width", type=int, default=32, help="of a row")
    what.add_argument("--hidden", default="1024,256,64", help="widths of the layers")
    what.add_argument("--skew", type=float, default=6.0, help="1: all ids are met equally often")
    what.add_argument("--learning-rate", type=float, default=0.5)
    what.add_argument("--steps", type=int, default=100_000)
    what.add_argument("--seed", type=int, default=0)
    what.add_argument("--save", default="", help="file for what was learnt")
    what.add_argument("--resume", default="", help="such a file, on every node, to go on from")
    what.add_argument("--slow-trainer", default="", metavar="RANK:MS", help="one that is late in each step")

    where = parser.add_argument_group("where it runs; the same command on every node")
    where.add_argument("--nodes", type=int, default=int(_ENVIRONMENT.get("WORLD_SIZE", "1")))
    where.add_argument("--node-rank", type=int, default=int(_ENVIRONMENT.get("RANK", "0")))
    where.add_argument("--trainer-nodes", type=int, default=0, help="nodes with trainers; 0: half of them")
    where.add_argument("--master-addr", default=_ENVIRONMENT.get("MASTER_ADDR", "127.0.0.1"))
    where.add_argument("--master-port", type=int, default=_find_port(), help="free on node 0")
    where.add_argument(
        "--transport", choices=("auto", "sockets", "all"), default="auto",
        help="auto: sockets alone on several nodes, because shared memory would go past a testbed's links",
    )  # fmt: skip
    where.add_argument(
        "--timeout", type=float, default=60.0, help="seconds for other nodes and for an answer"
    )
    return parser


def _find_port() -> int:
    """Torchrun itself listens on its MASTER_PORT."""
    return int(_ENVIRONMENT.get("MASTER_PORT", "0")) + ("TORCHELASTIC_RUN_ID" in _ENVIRONMENT)


def _list_contradictions(options: argparse.Namespace) -> list[tuple[bool, str]]:
    counts = (
        "servers",
        "trainers",
        "batch",
        "fields",
        "rows",
        "width",
        "steps",
        "nodes",
        "geo_k",
        "rpc_threads",
    )
    low = [name for name in counts if getattr(options, name) < 1]
    rank, _, late = options.slow_trainer.partition(":")
    return [
        (bool(low), f"--{', --'.join(low).replace('_', '-')}: 1 or more"),
        (options.min_block < 0, "--min-block: 0 or more elements"),
        (
            options.mode != "sync" and options.architecture != "servers",
            f"--mode {options.mode} needs --architecture servers: an allreduce is synchronous",
        ),
        (
            options.architecture == "hybrid" and options.table == "dense",
            "--architecture hybrid keeps the table's rows on servers: give --table rows",
        ),
        (
            not 1 <= options.trainer_nodes <= min(options.nodes, options.trainers),
            "--trainer-nodes: at most the nodes, and at most the trainers",
        ),
        (not 0 <= options.node_rank < options.nodes, "--node-rank: from 0 up to the last of --nodes"),
        (options.nodes > 1 and not options.master_port, "several nodes need --master-port or MASTER_PORT"),
        (
            bool(options.slow_trainer) and not (rank.isdigit() and late.replace(".", "", 1).isdigit()),
            "--slow-trainer: a trainer's number, a colon, and milliseconds",
        ),
    ]  # fmt: skip


def list_idle(options: argparse.Namespace) -> dict[str, str]:
    """Return each option that changes nothing beside the others, with the reason."""
    idle = {}
    if options.architecture == "collective":
        names = ("servers", "place", "placement", "min_block", "prefetch", "rpc_threads")
        idle |= dict.fromkeys(names, "A collective architecture has no servers.")
    if options.architecture == "hybrid":
        idle |= dict.fromkeys(
            ("placement", "min_block"), "Only rows lie on servers, spread by their numbers."
        )
    if options.mode != "geo":
        idle["geo_k"] = f"It counts in geo, and the mode is {options.mode}."
    if options.table == "dense":
        idle.setdefault("prefetch", "A dense table is pulled whole with everything else.")
    if options.servers == 1:
        idle.setdefault("placement", "One server holds everything.")
        idle.setdefault("min_block", "One server holds everything.")
    if options.trainers == options.trainer_nodes:
        idle.setdefault("reduce_in_node", "Each trainer is the only one of its node.")
    return idle
