"""Whether NCCL would use the network that a node has, on made-up trees of /sys/class."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.devices.network import find_adapters, find_rdma, judge_network


def grow(root: Path, *nets: str, rdma: str = "") -> Path:
    """`eth0`: an adapter that is up; `eth0:down`, `eth0:virtual`, `eth0:member`, `bond0:bond`."""
    for net in nets:
        name, _, kind = net.partition(":")
        folder = root / "net" / name
        folder.mkdir(parents=True)
        (folder / "operstate").write_text("down\n" if kind == "down" else "up\n")
        for entry in {"": ["device"], "member": ["device", "master"], "bond": ["bonding"]}.get(kind, []):
            (folder / entry).mkdir()
    if rdma:
        port = root / "infiniband" / "mlx5_0" / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(rdma)
    return root


def test_adapters_that_are_up_and_bonds_in_their_members_place(tmp_path: Path) -> None:
    root = grow(tmp_path, "eth0", "eth1:down", "docker0:virtual", "e2:member", "e3:member", "bond0:bond")
    (root / "net" / "bonding_masters").write_text("bond0\n")
    assert find_adapters(root) == ("bond0", "eth0")
    assert find_adapters(tmp_path / "nothing") == ()


@pytest.mark.parametrize(
    ("nets", "rdma", "verbs", "variables", "told"),
    [
        (("eth0",), "", True, {}, []),
        (("eth0", "eth1"), "", True, {}, ["2 network devices are up (eth0, eth1)"]),
        (("eth0", "eth1"), "", True, {"NCCL_SOCKET_IFNAME": "eth1"}, []),
        (("eth0", "eth1"), "4: ACTIVE", True, {}, []),
        (("eth0",), "4: ACTIVE", False, {}, ["libibverbs is not found"]),
        (("eth0",), "4: ACTIVE", False, {"NCCL_NET_PLUGIN": "aws"}, []),
        (("eth0",), "1: DOWN", False, {"NCCL_IB_DISABLE": "1"}, []),
        (("eth0",), "4: ACTIVE", True, {"NCCL_IB_DISABLE": "0"}, []),
        (("eth0",), "4: ACTIVE", True, {"NCCL_NET": "Socket"}, ["NCCL_NET=Socket"]),
        (
            ("eth0", "eth1"),
            "4: ACTIVE",
            True,
            {"NCCL_IB_DISABLE": "1"},
            ["mlx5_0 is up, and NCCL would use TCP all the same: NCCL_IB_DISABLE=1", "2 network devices"],
        ),
    ],
)
def test_what_keeps_nccl_from_the_right_network_is_told(
    nets: tuple[str, ...], rdma: str, verbs: bool, variables: dict[str, str], told: list[str], tmp_path: Path
) -> None:
    root = grow(tmp_path, *nets, rdma=rdma)
    found = judge_network(variables, root, has_verbs=verbs)
    assert len(found) == len(told)
    assert all(part in sentence for part, sentence in zip(told, found, strict=True))
    assert find_rdma(root) == (("mlx5_0",) if "ACTIVE" in rdma else ())
