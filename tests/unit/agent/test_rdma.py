"""RDMA adapters are those that Linux lists with a port that is up."""

from pathlib import Path

from agent.devices.network import find_rdma


def test_adapters_with_an_active_port_are_named_once(tmp_path: Path) -> None:
    for port, state in {
        "mlx5_0/ports/1": "4: ACTIVE",
        "mlx5_0/ports/2": "4: ACTIVE",
        "mlx5_1/ports/1": "1: DOWN",
    }.items():
        (tmp_path / "infiniband" / port).mkdir(parents=True)
        (tmp_path / "infiniband" / port / "state").write_text(f"{state}\n")
    assert find_rdma(tmp_path) == ("mlx5_0",)
    assert find_rdma(tmp_path / "nowhere") == ()
