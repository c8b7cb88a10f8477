"""A node without GPUs, for agents and samplers under test."""

from advisor.protocol.nodes.cluster import Device
from agent.devices.gpus import DeviceProcess, Reading


class NoGpus:
    """A node without GPUs."""

    trouble = ""

    def list_devices(self) -> tuple[Device, ...]:
        """Return nothing."""
        return ()

    def list_processes(self) -> tuple[DeviceProcess, ...] | None:
        """Return nothing."""
        return ()

    def sample(self) -> Reading | None:
        """Return that there is nothing to see."""
        return Reading()

    def close(self) -> None:
        """Do nothing."""
