"""The workload: what is trained, how it is launched, and the facts measured about it."""

from collections.abc import Mapping
from enum import StrEnum
from itertools import islice
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    Field,
    PlainSerializer,
    SerializationInfo,
    field_validator,
    model_validator,
)

from advisor.protocol.base import Message, Spec, Value
from advisor.protocol.expressions import LARGEST, evaluate
from advisor.protocol.nodes.cluster import DeviceKind
from advisor.protocol.patterns import compile_pattern
from advisor.protocol.training.command_options import split_variables
from advisor.protocol.training.own_knob_texts import TypedKnob
from advisor.protocol.training.own_knobs import OwnKnob, find_baseline, find_place
from advisor.protocol.training.parameter_servers import ParameterServers


class WorkloadKind(StrEnum):
    """How a workload is started and measured."""

    PYTORCH = "pytorch"
    """The advisor's runtime stands in front of the script, and switches knobs while it trains."""
    COMMAND = "command"
    """Any program: it takes knobs when it starts, and tells its step times in its output."""
    PADDLE = "paddle"
    """A PaddlePaddle dynamic-graph script: a preload sets and measures it, one launch for each strategy."""


class Injection(StrEnum):
    """How the runtime gets into the training processes of a PyTorch workload."""

    AUTO = "auto"
    """`launcher` where the command is torchrun or python with a script, `environment` for every other command."""
    LAUNCHER = "launcher"
    """In front of the script, inside the launch command."""
    ENVIRONMENT = "environment"
    """Through PYTHONPATH, for commands that start the ranks themselves: bash run.sh, accelerate launch."""
    NONE = "none"
    """Not at all: the script calls `fleet_advisor.start()` itself."""


HIDDEN: Final = "********"
"""What is written of a secret."""
WITH_SECRETS: Final[dict[str, Any]] = {"with_secrets": True}
"""Context of `model_dump_json` that writes secrets: for the database, and for who is to run the workload."""


_MOST_TOLD, _LONGEST_TOLD = 500, 500


def _keep_short(told: dict[str, str]) -> dict[str, str]:
    """Keep so many texts of so many characters: a script may tell anything, and whoever looks at its job gets it."""
    short = ((name, text) for name, text in told.items() if max(len(name), len(text)) <= _LONGEST_TOLD)
    return dict(islice(short, _MOST_TOLD))


Told = Annotated[dict[str, str], AfterValidator(_keep_short)]
"""What a script's process tells by name."""


def _write_secret(value: str, info: SerializationInfo) -> str:
    return value if (info.context or {}).get("with_secrets") else HIDDEN


Secret = Annotated[str, PlainSerializer(_write_secret, return_type=str, when_used="json")]
"""Text that JSON does not show unless it is asked to: a forgotten place hides it, none gives it away."""

RESULT_GROUPS = ("step_time_s", "step_time_ms", "samples_per_s", "samples", "loss", "rank")
"""Names that the groups of `Workload.pattern` may have."""


class Workload(Spec):
    """A launch command, exactly as its owner types it, and how it is measured."""

    kind: WorkloadKind = WorkloadKind.PYTORCH
    """Which backend of the agent starts it."""
    command: tuple[str, ...] = Field(min_length=1)
    """The launch command, one word per element: `torchrun --nproc-per-node 2 train.py --epochs 3`. Words in front of
    it such as `OMP_NUM_THREADS=1` become variables of `environment`, as in a shell."""
    working_dir: str = "."
    """Directory the command is started in, absolute on every node."""
    environment: dict[str, Secret] = Field(default_factory=dict, repr=False)
    """Environment variables added for the training processes. Values may be secrets: they can be read again only by the
    agents that run the workload."""
    samples_per_step: Annotated[int, Field(ge=1)] | Annotated[str, Field(max_length=300)] | None = None
    """Samples that one rank consumes per forward pass (of a `command`, per step), or an expression over knobs of the
    script's own that comes to it: `2 * micro`. None infers it from the model's first input."""
    injection: Injection = Injection.AUTO
    """How the runtime gets into the ranks; other kinds than `pytorch` have none."""
    protect: tuple[str, ...] = ()
    """Further directories whose contents trials must not change (the working directory always is)."""
    knobs: dict[str, Value] = Field(default_factory=dict)
    """Knobs that a `command` reads from ADVISOR_STRATEGY or the strategy file, with the baseline's values."""
    base: dict[str, Value] = Field(default_factory=dict)
    """Knobs that stand in the ranks beside the script's own, in every strategy that does not set them: what strategies
    are held against. For kind `pytorch`."""
    own: tuple[TypedKnob, ...] = Field(default=(), max_length=64)
    """Knobs of the script's own, which are searched beside the catalogue's; each may also be written in one text, as
    on the command line: `micro=1,2,4,8:exact`."""
    require: tuple[str, ...] = Field(default=(), max_length=32)
    """What has to hold of every strategy: `micro * accumulate == 8`, over own knobs, the catalogue's, options that the
    command has (`--num-heads 32` is num_heads), and the facts world_size, nodes, gpus_per_node and gpu_memory_gib."""
    pattern: str = Field(default="", max_length=1000)
    """Regular expression (RE2's) that finds a step in a line of a `command`'s output, with named groups `step_time_s`
    (or `step_time_ms`, or `samples_per_s`) and perhaps `samples`, `loss`, `rank`; empty reads JSON lines."""

    @field_validator("command")
    @classmethod
    def _refuse_empty_words(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if not command[0].strip():
            raise ValueError("the first word of the command is empty: give the launcher, e.g. torchrun")
        return command

    @field_validator("pattern")
    @classmethod
    def _refuse_unusable_patterns(cls, pattern: str) -> str:
        if not pattern:
            return pattern
        groups = compile_pattern(pattern).groupindex
        if unknown := [name for name in groups if name not in RESULT_GROUPS]:
            raise ValueError(
                f"the pattern's groups {unknown} have no meaning: name them {', '.join(RESULT_GROUPS)}"
            )
        if not set(RESULT_GROUPS[:3]) & groups.keys():
            raise ValueError(
                f"the pattern finds no time: it needs a group named {' or '.join(RESULT_GROUPS[:3])}"
            )
        return pattern

    @model_validator(mode="after")
    def _take_variables(self) -> Self:
        variables, words = split_variables(self.command)
        if variables and not words:
            raise ValueError("the command is only variables: give the launcher behind them, e.g. torchrun")
        if unfilled := [name for name, text in variables.items() if "${" in text]:
            raise ValueError(
                f"{unfilled[0]}=${{…}} in front of the command is not filled in: write `env` before it, or name the "
                f"variable as a knob: '${unfilled[0]}=VALUE,VALUE'"
            )
        # The model is frozen for everyone else; what it holds is complete from the last validator on.
        object.__setattr__(self, "command", tuple(words))
        object.__setattr__(self, "environment", {**self.environment, **variables})
        return self

    @model_validator(mode="after")
    def _refuse_what_only_commands_have(self) -> Self:
        if self.kind is not WorkloadKind.COMMAND and (self.knobs or self.pattern):
            given = "knobs" if self.knobs else "pattern"
            raise ValueError(
                f"workload.{given} is for workloads of kind command, and this one is {self.kind.value}"
            )
        if self.base and self.kind is not WorkloadKind.PYTORCH:
            raise ValueError(
                f"workload.base is for workloads of kind pytorch, and this one is {self.kind.value}"
            )
        return self

    @model_validator(mode="after")
    def _refuse_uncountable_samples(self) -> Self:
        if isinstance(self.samples_per_step, str):
            count = count_samples(self.samples_per_step, {knob.name: knob.own_value for knob in self.own})
            if not self.own:
                object.__setattr__(self, "samples_per_step", count)
        return self

    @field_validator("own")
    @classmethod
    def _refuse_names_given_twice(cls, own: tuple[OwnKnob, ...]) -> tuple[OwnKnob, ...]:
        names = [knob.name for knob in own]
        if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            raise ValueError(f"{', '.join(twice)}: give each knob of your own once")
        return own

    @model_validator(mode="after")
    def _read_baselines(self) -> Self:
        """Say for each own knob what the command has today."""
        read = []
        words = [*self.command, *(w for knob in self.own for group in knob.words.values() for w in group)]
        for given in self.own:
            knob = given.model_copy(update={"at": find_place(given, self.command)})
            today = find_baseline(knob, self.command, self.environment)
            if None not in (today, knob.baseline) and today != knob.baseline:
                raise ValueError(
                    f"{knob.name} has two baselines: the command says {today!r}, and baseline is {knob.baseline!r}"
                )
            if knob.file and not any(f"={word}".endswith(f"={knob.file[0]}") for word in words):
                raise ValueError(
                    f"the command does not name {knob.file[0]}, so that it would not read the copy in which "
                    f"{knob.file[1]} is another: name the file as the command does"
                )
            value = knob.own_value if today is None else today
            read.append(OwnKnob.model_validate({**dict(knob), "baseline": value}))
        object.__setattr__(self, "own", tuple(read))
        return self

    @property
    def switches_at_launch(self) -> bool:
        """Whether knobs take effect in new processes only, so that every strategy needs a launch of its own."""
        return self.kind is not WorkloadKind.PYTORCH


class DdpFacts(Message):
    """How the script built its DistributedDataParallel."""

    static_graph: bool = False
    """DDP's static_graph argument."""
    find_unused_parameters: bool = False
    """DDP's find_unused_parameters argument."""
    gradient_as_bucket_view: bool = False
    """DDP's gradient_as_bucket_view argument."""
    own_comm_hook: bool = False
    """The script registered a communication hook of its own."""
    reduces_one_by_one: bool = False
    """torch's python_reducer mode is set, and the model not compiled: DDP waits for each parameter's sum by itself."""
    built_at: str = ""
    """The script's own line that built it, `train.py:12`; empty where nothing tells."""


class HostRead(Message):
    """A line of the script that reads values off the device, and so makes the host wait for it."""

    site: str
    """`train.py:41`."""
    call: str
    """The tensor's method: item, cpu, ..."""
    per_step: float
    """Reads in one optimizer step."""
    waited_s: float
    """Seconds that the host waited in them in one step."""


class Recomputed(Message):
    """Activations that the script computes again in its backward passes, by torch.utils.checkpoint."""

    per_step: float = 0.0
    """Calls that are computed again in one optimizer step; 0 where none was seen."""
    seconds: float = 0.0
    """Of one of the first steps."""
    site: str = ""
    """`model.py:41`: the line that calls the first of them."""
    by: str = ""
    """What has it computed again there: `checkpoint`, `checkpoint_sequential`, `checkpoint_wrapper`, or
    `gradient_checkpointing`, by which a module of transformers' kind is switched; empty where nothing tells."""
    kept_bytes: int = 0
    """Memory of one rank that keeping them takes more; 0 on CPUs, where nothing tells."""


SAMPLES_PER_S, STEPS_PER_S = "samples/s", "steps/s"


class WorkloadFacts(Message):
    """What the runtime saw of the running script."""

    backend: str
    """Collective backend: gloo or nccl; empty where the runtime could not tell."""
    device: DeviceKind
    """What the model computes on."""
    device_name: str = ""
    """Product name of the device."""
    world_size: int
    """Number of ranks."""
    local_world_size: int
    """Ranks per node."""
    nodes: int = 1
    """Number of nodes."""
    gradient_bytes: int
    """Bytes of gradients reduced per synchronised step, per rank; 0 where the runtime could not tell."""
    gradient_dtype: str = "float32"
    """Type of most gradients."""
    parameter_tensors: int
    """Number of trainable parameter tensors."""
    layers: int
    """Leaf modules that hold parameters."""
    largest_parameter_bytes: int = 0
    """Size of the largest parameter tensor."""
    sparse_gradients: bool = False
    """Some embedding produces sparse gradients; fusion leaves those alone."""
    has_batch_norm: bool = False
    """The model holds batch-norm layers."""
    memory_share: float = 0.0
    """Share of its device's memory that the fullest rank used at its peak; 0 where it is not known (on CPUs)."""
    batch_size_per_rank: float
    """Samples that one rank consumes per optimizer step; 0 where nothing tells how many: then steps are counted."""
    numbers_per_step: float = 0.0
    """Numbers in all tensors that one rank's model is given in an optimizer step; 0 where nothing tells."""
    tells_samples: bool = False
    """The script itself says how many samples a step has (`fleet_advisor.step`): nothing here counted them."""
    microbatches_per_step: float = 1
    """Forward passes per optimizer step (gradient accumulation)."""
    exchanges_per_step: int = 0
    """Backward passes of one optimizer step in which DDP exchanges gradients, or FSDP reduces them; 0 where nothing
    tells."""
    exchanges_by: str = ""
    """What exchanges gradients (`calls of the script's own`) where several ranks train a model that neither DDP nor
    FSDP nor DeepSpeed up to ZeRO's stage 2 has taken: only a diagnosis times it. Else empty."""
    optimizers: tuple[str, ...] = ()
    """Class names of the optimizers that step."""
    ddp: DdpFacts = DdpFacts()
    """How DDP was built."""
    sharding: str = ""
    """fully_shard, FullyShardedDataParallel or DeepSpeed, where one of them takes DDP's place."""
    shard_ranks: int = 0
    """Ranks that share one copy of a sharded model's parameters; 0 where nothing is sharded."""
    shard_copies: int = 0
    """Copies of a sharded model: more than one is hybrid sharding (HSDP); 0 where nothing is sharded."""
    dataloader: dict[str, bool | int | None] | None = None
    """num_workers, prefetch_factor and pin_memory of the training DataLoader, and whether its dataset is `iterable`;
    None without one."""
    parameter_servers: ParameterServers | None = None
    """What a training with parameter servers tells of them; None for others."""
    host_reads: tuple[HostRead, ...] = ()
    """Lines that read values off the device, seen on rank 0 in its first steps; those that waited longest first."""
    recomputed: Recomputed = Recomputed()
    """Activations that are computed again, seen on rank 0 in its first steps."""
    vain_search_s: float = 0.0
    """Seconds a step in which DDP searched the graph for unused parameters, and no rank had any in any step; else 0."""
    ranks_apart: str = ""
    """Clause: which ranks held different parameters before anything was changed; empty where all held the same."""
    batches_per_rank: tuple[int, ...] = ()
    """Batches of one pass over the training DataLoader, by rank, where they differ; empty elsewhere."""
    cpu_threads: int = 1
    """Intra-op threads of a rank as the script left them."""
    sets_threads: bool = False
    """The script sets them itself: they are not what OMP_NUM_THREADS says."""
    step_time_s_hint: float | None = None
    """A first, rough step time."""
    torch_version: str = ""
    """Torch in the training environment."""
    python_version: str = ""
    """Python in the training environment."""
    sources: Told = Field(default_factory=dict)
    """Digests of the script's own files that it runs, by their paths from the working directory."""
    software: Told = Field(default_factory=dict)
    """Versions of further software that the measurements depend on, by name: `{"paddle": "3.3.1"}`."""

    @property
    def rounds_sums(self) -> bool:
        """Whether the script's gradients may be added up in 16 bits, so that another order is another rounding.

        What a hook of its own does is not known. The sum of two ranks is the same in either order, unless each
        accumulated micro-batch is exchanged: put off, they are added up on each rank first.
        """
        halves = self.gradient_dtype in {"float16", "bfloat16"}
        has_orders = self.world_size > 2 or (self.world_size == 2 and self.exchanges_per_step > 1)
        return has_orders and (halves or self.ddp.own_comm_hook)

    @property
    def keeps_buckets(self) -> bool:
        """Whether DDP's buckets stay as parameters are defined: it deals none anew where it searches in every step."""
        return self.ddp.find_unused_parameters and not self.ddp.static_graph

    @property
    def rate_unit(self) -> str:
        """What a rate of this training is told in."""
        return SAMPLES_PER_S if self.batch_size_per_rank > 0 else STEPS_PER_S


def count_samples(text: str, values: Mapping[str, Value]) -> int:
    """Return what an expression for the samples of a step comes to; raises ValueError with a sentence."""
    try:
        found = evaluate(text, values)
    except ValueError as error:
        raise ValueError(f"samples_per_step {text!r}: {error}") from None
    if isinstance(found, bool) or not isinstance(found, int | float) or not 1 <= found <= LARGEST:
        raise ValueError(
            f"samples_per_step {text!r} comes to {found!r}, and has to be at least 1, and at most {LARGEST:g}"
        )
    return round(found)


def list_changed_files(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the files that ran in two versions, by their digests; a file that only one side ran tells nothing."""
    return sorted(name for name in before.keys() & now.keys() if before[name] != now[name])
