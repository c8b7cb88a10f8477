"""Whether NCCL would use the network that a node has: from what Linux lists under /sys/class, and from variables."""

from collections.abc import Mapping
from ctypes.util import find_library
from pathlib import Path

CLASSES = Path("/sys/class")
"""Where Linux lists devices by their kind."""


def find_rdma(classes: Path = CLASSES) -> tuple[str, ...]:
    """Return the RDMA adapters (InfiniBand, RoCE) with a port that is up, by name."""
    folder = classes / "infiniband"
    ports = sorted(folder.glob("*/ports/*/state"))
    up = (port for port in ports if "ACTIVE" in port.read_text())
    return tuple(dict.fromkeys(port.relative_to(folder).parts[0] for port in up))


def find_adapters(classes: Path = CLASSES) -> tuple[str, ...]:
    """Return the network devices that are up and may carry a training: adapters, and bonds in their members' place."""
    folder = classes / "net"
    found = (path for path in sorted(folder.glob("*")) if _read(path / "operstate") == "up")
    return tuple(
        path.name
        for path in found
        if ((path / "device").exists() or (path / "bonding").exists()) and not (path / "master").exists()
    )


def judge_network(
    environment: Mapping[str, str], classes: Path = CLASSES, *, has_verbs: bool | None = None
) -> tuple[str, ...]:
    """Return a sentence for each thing that keeps NCCL from the right network; changes and sends nothing.

    `has_verbs`: whether libibverbs is installed; None looks for it.
    """
    sentences = []
    rdma, adapters = find_rdma(classes), find_adapters(classes)
    plugin = environment.get("NCCL_NET_PLUGIN", "")
    off = ""
    if environment.get("NCCL_IB_DISABLE", "0") not in {"", "0"}:
        off = f"NCCL_IB_DISABLE={environment['NCCL_IB_DISABLE']} is set: take it away, unless it is there for a reason"
    elif environment.get("NCCL_NET", "").lower() == "socket":
        off = f"NCCL_NET={environment['NCCL_NET']} is set: take it away, unless it is there for a reason"
    elif rdma and not plugin and not (find_library("ibverbs") if has_verbs is None else has_verbs):
        off = "libibverbs is not found: install it (rdma-core), in the container too"
    if rdma and off:
        sentences.append(f"{', '.join(rdma)} is up, and NCCL would use TCP all the same: {off}.")
    if len(adapters) > 1 and not environment.get("NCCL_SOCKET_IFNAME") and (off or not rdma):
        sentences.append(
            f"{len(adapters)} network devices are up ({', '.join(adapters)}), and NCCL chooses among them by itself, "
            "perhaps the slow one: set NCCL_SOCKET_IFNAME to the one over which the nodes reach each other."
        )
    return tuple(sentences)


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
