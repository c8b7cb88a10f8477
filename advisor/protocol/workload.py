"""The workload: what is trained, how it is launched, and the facts measured about it."""

from enum import StrEnum

from pydantic import Field, field_validator

from advisor.protocol.base import Message, Spec
from advisor.protocol.cluster import DeviceKind


class WorkloadKind(StrEnum):
    """How a workload is started and measured."""

    PYTORCH = "pytorch"


class Workload(Spec):
    """A launch command, exactly as its owner types it, and how it is measured."""

    kind: WorkloadKind = WorkloadKind.PYTORCH
    """Which backend of the agent starts it."""
    command: tuple[str, ...] = Field(min_length=1)
    """The launch command, one word per element: `torchrun --nproc-per-node 2 train.py --epochs 3`."""
    working_dir: str = "."
    """Directory the command is started in, absolute on every node."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables added for the training processes."""
    samples_per_step: int | None = Field(default=None, ge=1)
    """Samples that one rank consumes per forward pass; None infers it from the model's first input."""
    protect: tuple[str, ...] = ()
    """Further directories whose contents trials must not change (the working directory always is)."""

    @field_validator("command")
    @classmethod
    def _refuse_empty_words(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if not command[0].strip():
            raise ValueError("the first word of the command is empty: give the launcher, e.g. torchrun")
        return command


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


class WorkloadFacts(Message):
    """What the runtime saw of the running script."""

    backend: str
    """Collective backend: gloo or nccl."""
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
    """Bytes of gradients reduced per synchronised step, per rank."""
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
    batch_size_per_rank: float
    """Samples that one rank consumes per optimizer step."""
    microbatches_per_step: float = 1
    """Forward passes per optimizer step (gradient accumulation)."""
    optimizers: tuple[str, ...] = ()
    """Class names of the optimizers that step."""
    ddp: DdpFacts = DdpFacts()
    """How DDP was built."""
    dataloader: dict[str, bool | int | None] | None = None
    """num_workers, prefetch_factor and pin_memory of the training DataLoader; None without one."""
    cpu_threads: int = 1
    """Intra-op threads of a rank as the script left them."""
    step_time_s_hint: float | None = None
    """A first, rough step time."""
    torch_version: str = ""
    """Torch in the training environment."""
    python_version: str = ""
    """Python in the training environment."""
