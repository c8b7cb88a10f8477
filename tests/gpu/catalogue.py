"""All checks, in the order in which they are worth running: the quick ones that others rest on first."""

from tests.gpu import card, levers, nccl_settings, timing, whole
from tests.gpu.check import Check

CHECKS = (
    Check(
        "nvml",
        f"NVML says what nvidia-smi says: busy within {card.BUSY_POINTS:.0%} points, memory within "
        f"{card.MEMORY_BYTES // 2**20} MiB, power within {card.POWER_SHARE:.0%}, clock within {card.CLOCK_SHARE:.0%}; "
        "GPM where the card has it.",
        card.check_nvml,
    ),
    Check(
        "nccl",
        f"A communicator of its own sums rightly and keeps at most {card.KEPT_BYTES // 2**20} MiB once destroyed; on a "
        f"slow link between two ranks an allreduce takes the host under {card.HOST_S * 1e3:.0f} ms, and by events over "
        f"{card.SLOWER_THAN_HOST:.0f} times as long.",
        card.check_nccl,
    ),
    Check(
        "timing",
        "Step, forward, backward and optimizer are those of torch.profiler's trace, within "
        f"{timing.TRACE_TOLERANCE:.0%} of the step.",
        timing.check_timing,
    ),
    Check(
        "diagnosis",
        "A communicating training is taken for bound by communication and a computing one is not; the exposed share is "
        f"the trace's, within {timing.TRACE_TOLERANCE:.0%} of the step.",
        timing.check_diagnosis,
    ),
    Check(
        "intrusion",
        f"The runtime makes steps of about {timing.STEP_MS} ms at most × {timing.INTRUSION}, both ends of the interval "
        f"within {timing.INTRUSION_INTERVAL[0]} … {timing.INTRUSION_INTERVAL[1]}.",
        timing.check_intrusion,
    ),
    Check(
        "memory_fraction",
        f"The allocator holds {levers.FRACTION:.0%} of the card (± {levers.FRACTION_TOLERANCE:.0%}) while it was asked "
        "to, and is capped there.",
        levers.check_memory_fraction,
    ),
    Check(
        "amp",
        f"bfloat16 is in force, the loss finite, and steps of large matrices take at most × {levers.AMP_RATIO}.",
        levers.check_amp,
    ),
    Check("compile", "torch.compile is in force inside DDP, switched while it runs.", levers.check_compile),
    Check("optimizer", "The fused optimizer is in force, switched while it runs.", levers.check_optimizer),
    Check(
        "cudnn",
        f"cuDNN's search is in force from the start and takes at most × {levers.CUDNN_RATIO}; switched while it runs, "
        "it is sent to a launch of its own.",
        levers.check_cudnn,
    ),
    Check(
        "snapshots",
        "After a block in bfloat16 every rank holds model and optimizer bit for bit as before it.",
        levers.check_snapshots,
    ),
    Check(
        "memory",
        f"With {levers.FILLED:.0%} of the card in use, what takes memory is measured or refused with a sentence; "
        "nothing crashes.",
        levers.check_memory,
    ),
    Check(
        "communicators",
        "Two and four communicators and two levels end without a hang, and give the card's memory back within "
        f"{levers.GIVEN_BACK_BYTES // 2**20} MiB.",
        levers.check_communicators,
    ),
    Check(
        "channels",
        "NCCL's kernels have as many blocks as their communicator was made with; a variable in the environment beats "
        f"that; a communicator keeps at most {nccl_settings.KEPT_BYTES // 2**20} MiB; fewest and most blocks and "
        "clusters are in force, switched while a training runs.",
        nccl_settings.check_channels,
    ),
    Check(
        "tuner",
        "NCCL loads the tuner plugin that a rank builds, and takes rings of both protocols and 2 channels from it.",
        nccl_settings.check_tuner,
    ),
    Check(
        "kill",
        "After SIGKILL to the agent no process of the session is left, on the node or on the cards, and /dev/shm is as "
        "before.",
        whole.check_kill,
    ),
    Check(
        "trainer",
        "A Hugging Face Trainer with torch_compile=True takes under the runtime's baseline at most × "
        f"{timing.TRAINER} of what it takes bare.",
        timing.check_trainer,
    ),
    Check("tune", "`advisor tune` ends with an advice.", whole.check_tune),
    Check("demo", "The demo's training on cards ends with an advice.", whole.check_demo),
    Check("suite", "The runtime's own tests pass on the cards.", whole.check_suite),
)
