"""The engines that start things on nodes, a row each: what each says of this node, and what it adds for itself."""

import json
import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from advisor.protocol.allocation import ask_squeue, find_seconds_left

Environment = Mapping[str, str]
Said = tuple[str, str]
"""A value, and where it was read."""
Read = Callable[[Environment], Said | None]


class NotANode(Exception):
    """The environment does not say which node this is; `hint` says what to do."""

    def __init__(self, sentence: str, hint: str) -> None:
        super().__init__(sentence)
        self.hint = hint


def _variable(*names: str) -> Read:
    """The first of these variables that is set."""
    return lambda values: next(((values[name], name) for name in names if values.get(name)), None)


def _first_of(*names: str) -> Read:
    """The first host of a list in one of these variables."""

    def read(values: Environment) -> Said | None:
        said = _variable(*names)(values)
        return said and (re.split(r"[\s,]+", said[0].strip())[0], f"the first of {said[1]}")

    return read


def _number_in(*names: str) -> Read:
    """The number that one of these variables begins or ends with: `8(x4)`, `2:4`."""

    def read(values: Environment) -> Said | None:
        said = _variable(*names)(values)
        found = said and re.search(r"(?:^\d+:)?(\d+)", said[0])
        return (found[1], said[1]) if said and found else None

    return read


def _nothing(_: Environment) -> Said | None:
    return None


def _slurm_head(values: Environment) -> Said | None:
    """The first host of `node[03-05,9],gpu1`."""
    said = _variable("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")(values)
    if said is None:
        return None
    return re.sub(r"\[(\w+)[^]]*\]", r"\1", re.split(r",(?![^\[]*\])", said[0])[0]), f"the first of {said[1]}"


def _volcano(part: str, pick: Callable[[str], str], words: str) -> Read:
    """Volcano names its variables for the job's tasks: `VC_WORKER_HOSTS` where the task is called worker."""

    def read(values: Environment) -> Said | None:
        if "VC_TASK_INDEX" not in values:
            return None
        names = [name for name in sorted(values) if re.fullmatch(rf"VC_(?!TASK_)\w+_{part}", name)]
        return (pick(values[names[0]]), f"{words}{names[0]}") if len(names) == 1 else None

    return read


def _sagemaker(pick: Callable[[list[str], str], str], words: str) -> Read:
    def read(values: Environment) -> Said | None:
        if not (values.get("SM_HOSTS") and values.get("SM_CURRENT_HOST")):
            return None
        return pick(sorted(json.loads(values["SM_HOSTS"])), values["SM_CURRENT_HOST"]), words

    return read


@dataclass(frozen=True)
class Engine:
    """What starts a command on every node, and by which words it tells each which one it is."""

    name: str
    rank: Read
    """Of the node; with several tasks on each node, of the task."""
    count: Read
    head: Read = _nothing
    """A name or address of node 0 that the others reach."""
    host: Read = _nothing
    """What this node is called."""
    task: Read = _nothing
    """This task among those of its node."""
    tasks: Read = _nothing
    """Tasks on each node."""
    ranks_are_tasks: bool = False
    """Whether it counts tasks, of which a node may have several."""
    allocation: Read = _nothing
    """What tells one allocation from the next."""
    added: str = r"(?!)"
    """Names of variables that it adds for itself: they are none of the user's."""
    binds: bool = False
    """Whether it binds what it starts to a few processors."""
    present: Read = _nothing
    """A sign of it where it does not say which node this is."""


_COUNT_BY_HAND = _variable("--nodes", "ADVISOR_NODES")
_HEAD_BY_HAND = _variable("--head", "ADVISOR_HEAD")

ENGINES = (
    Engine(
        "by hand", _variable("--node-rank", "ADVISOR_NODE_RANK"), _COUNT_BY_HAND, _HEAD_BY_HAND,
    ),
    Engine(
        "Open MPI", _variable("OMPI_COMM_WORLD_RANK"), _variable("OMPI_COMM_WORLD_SIZE"),
        task=_variable("OMPI_COMM_WORLD_LOCAL_RANK"), tasks=_variable("OMPI_COMM_WORLD_LOCAL_SIZE"),
        ranks_are_tasks=True, allocation=_variable("PMIX_NAMESPACE"), added=r"(OMPI|PMIX|PRTE)_\w+", binds=True,
    ),
    Engine(
        "SkyPilot", _variable("SKYPILOT_NODE_RANK"), _variable("SKYPILOT_NUM_NODES"),
        _first_of("SKYPILOT_NODE_IPS"), allocation=_variable("SKYPILOT_TASK_ID"),
    ),
    Engine(
        "dstack", _variable("DSTACK_NODE_RANK"), _variable("DSTACK_NODES_NUM"), _variable("DSTACK_MASTER_NODE_IP"),
        allocation=_variable("DSTACK_RUN_NAME"),
    ),
    Engine(
        "Kubeflow Trainer", _variable("PET_NODE_RANK"), _number_in("PET_NNODES"), _variable("PET_MASTER_ADDR"),
        added=r"PET_(?!NPROC_PER_NODE)\w+",
    ),
    Engine(
        "Volcano", _variable("VC_TASK_INDEX", "VK_TASK_INDEX"), _volcano("NUM", str, ""),
        _volcano("HOSTS", lambda hosts: hosts.split(",")[0], "the first of "),
        added=r"MASTER_(ADDR|PORT)|WORLD_SIZE|RANK",
    ),
    Engine(
        "SageMaker", _sagemaker(lambda hosts, own: str(hosts.index(own)), "SM_CURRENT_HOST in SM_HOSTS"),
        _sagemaker(lambda hosts, _: str(len(hosts)), "SM_HOSTS"),
        _sagemaker(lambda hosts, _: hosts[0], "the first of SM_HOSTS"), host=_variable("SM_CURRENT_HOST"),
    ),
    Engine(
        "Slurm", _variable("SLURM_NODEID"),
        _variable("SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"), _slurm_head,
        _variable("SLURMD_NODENAME"), task=_variable("SLURM_LOCALID"), tasks=_number_in("SLURM_STEP_TASKS_PER_NODE"),
        allocation=_variable("SLURM_JOB_ID"), added=r"(PMI|PMIX)_\w+",
    ),
    Engine(
        "MPI", _variable("PMI_RANK"), _variable("PMI_SIZE"), task=_variable("MPI_LOCALRANKID"),
        tasks=_variable("MPI_LOCALNRANKS"), ranks_are_tasks=True, added=r"(PMI|HYDRA|HYDI|MPI_LOCAL)\w*", binds=True,
    ),
    Engine("Kubernetes", _variable("JOB_COMPLETION_INDEX"), _COUNT_BY_HAND),
    Engine("Ray", _nothing, _nothing, added=r"RAY_\w+|OMP_NUM_THREADS|PYTHONBREAKPOINT",
           present=_variable("RAY_JOB_ID", "RAY_RAYLET_PID")),
)  # fmt: skip
"""The first that says which node this is, is believed: what runs inside another comes before it."""


@dataclass(frozen=True)
class Place:
    """Which node this is, among how many, and what was read where."""

    engine: str
    rank: int
    count: int
    host: str
    head: str = ""
    task: int = 0
    """This process among those that were started on this node; only the first does anything."""
    tasks: int = 1
    allocation: str = ""
    ends_in_s: float | None = None
    binds: bool = False
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where each was read."""

    @property
    def name(self) -> str:
        """The agent's name: nodes that share a host's name have names of their own."""
        return f"{self.host}-{self.rank}"


def find_place(
    values: Environment,
    typed: Environment,
    ends_in: str | None,
    now_s: float,
    ask: Callable[[str], str] = ask_squeue,
) -> Place:
    """Return which node this is; `typed`: what options say by hand, under their names.

    Raises `NotANode`.
    """
    known = {**values, **typed}
    for engine in ENGINES:
        rank, count = engine.rank(known), engine.count(known)
        if rank is not None and count is not None:
            break
    else:
        half = [engine.name for engine in ENGINES if engine.rank(known)]
        raise NotANode(
            f"{half[0]} says which node this is and not of how many."
            if half
            else "No engine says which node this is.",
            "Say it by hand on each node: --node-rank 0 --nodes 2 --head HOST (or ADVISOR_NODE_RANK, ADVISOR_NODES, "
            "ADVISOR_HEAD). docs/cluster.md has the engines that are understood.",
        )
    head = _HEAD_BY_HAND(known) or engine.head(known)
    host = engine.host(known) or (socket.gethostname(), "this host's name")
    tasks, task, allocation = engine.tasks(known), engine.task(known), engine.allocation(known)
    ends_in_s = find_seconds_left(ends_in, known, now_s, ask)
    read = {"node": rank, "nodes": count, "head": head, "name": host, "task": task, "tasks": tasks,
            "allocation": allocation}  # fmt: skip
    sources = {what: said[1] for what, said in read.items() if said is not None}
    if ends_in_s is not None:
        sources["ends in"] = (
            "--ends-in" if ends_in else "SLURM_JOB_END_TIME" if "SLURM_JOB_END_TIME" in known else "squeue"
        )
    place = Place(
        engine=engine.name,
        rank=_whole(rank),
        count=_whole(count),
        host=host[0].split(".")[0],
        head=head[0] if head else "",
        task=_whole(task) if task else 0,
        tasks=_whole(tasks) if tasks else 1,
        allocation=allocation[0] if allocation else "",
        ends_in_s=ends_in_s,
        binds=engine.binds,
        sources=sources,
    )
    return _prove(_in_nodes(place) if engine.ranks_are_tasks else place)


def _whole(said: Said) -> int:
    if not re.fullmatch(r"\d{1,6}", said[0].strip()):
        raise NotANode(f"{said[1]} is {said[0]!r}, which is no number.", "Correct it, or say it by hand.")
    return int(said[0])


def _in_nodes(place: Place) -> Place:
    """Count nodes where an engine counts tasks."""
    if place.count % place.tasks or place.rank % place.tasks != place.task:
        raise NotANode(
            f"Task {place.rank} of {place.count} is task {place.task} of {place.tasks} on this node: they are "
            "not dealt to the nodes one node after the other, as many to each.",
            "Start one on each node: mpirun --map-by ppr:1:node …",
        )
    fields = {**place.__dict__, "rank": place.rank // place.tasks, "count": place.count // place.tasks}
    return Place(**fields)


def _prove(place: Place) -> Place:
    if place.rank < place.count:
        return place
    raise NotANode(
        f"Node {place.rank} of {place.count}: nodes are counted from 0.",
        "Give the nodes --node-rank 0, 1, 2 … and each of them --nodes.",
    )


def reset_added(values: Environment) -> tuple[dict[str, str], list[str]]:
    """Return the user's own environment, and sentences on what engines had added to it for themselves."""
    kept, said = dict(values), []
    for engine in ENGINES:
        if not (engine.rank(values) or engine.present(values)):
            continue
        added = [name for name in kept if re.fullmatch(engine.added, name)]
        for name in added:
            del kept[name]
        if added:
            told = [f"{name}={values[name]}" if name == "OMP_NUM_THREADS" else name for name in sorted(added)]
            more = f" and {len(told) - _MOST_TOLD} more" if len(told) > _MOST_TOLD else ""
            told.sort(key=lambda name: "=" not in name)
            said.append(
                f"{', '.join(told[:_MOST_TOLD])}{more}: {engine.name} set them for itself, so trials run without. To "
                "set one for your training, put `env NAME=VALUE` in front of its command."
            )
    return kept, said


_MOST_TOLD = 4


def spread(place: Place) -> str:
    """Undo an engine's binding of this process; return what is to be said of the processors that it may use."""
    allowed = len(os.sched_getaffinity(0))
    if place.binds:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        freed = len(os.sched_getaffinity(0))
        if freed > allowed:
            return f"{place.engine} bound this process to {allowed} of {freed} processors: trials may use them all."
    elif place.engine == "Slurm" and allowed == 1 < (os.cpu_count() or 1):
        return (
            f"Slurm gives this task 1 of {os.cpu_count()} processors, which all ranks of this node share: "
            "`srun --cpus-per-task=N`, or `sbatch --exclusive` and `srun --cpu-bind=none`."
        )
    return ""
