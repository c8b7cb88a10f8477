"""Reads of the device's values are counted by the script's line, and torch is left as it was found."""

import pytest

torch = pytest.importorskip("torch")

from agent.runtime.observe.host_reads import CALLS, HostReads  # noqa: E402


@pytest.fixture
def reads() -> HostReads:
    """Give a watch that counts processors' tensors as if they were a device's."""
    return HostReads(counts=lambda _: True)


def test_reads_are_counted_by_line_and_call(reads: HostReads) -> None:
    loss = torch.tensor(2.5)
    reads.start()
    try:
        for _ in range(4):
            assert loss.item() == 2.5
        assert f"{loss}" == "2.5"
        assert float(loss) == 2.5
        assert bool(loss)
    finally:
        reads.stop()
    found = {(row["call"], row["per_step"]) for row in reads.describe(2)}
    assert found == {("item", 2.0), ("__format__", 0.5), ("__float__", 0.5), ("__bool__", 0.5)}
    assert all(row["site"].startswith("tests/unit/runtime/test_host_reads.py:") for row in reads.describe(2))
    assert all(row["waited_s"] >= 0 for row in reads.describe(2))


def test_torch_is_left_as_it_was(reads: HostReads) -> None:
    before = {name: torch.Tensor.__dict__.get(name) for name in CALLS}
    reads.start()
    reads.stop()
    assert {name: torch.Tensor.__dict__.get(name) for name in CALLS} == before
    torch.ones(1).item()
    assert reads.describe(1) == []


def test_tensors_of_processors_are_nobodys_wait() -> None:
    reads = HostReads()
    reads.start()
    try:
        assert torch.ones(3).sum().item() == 3.0
        assert torch.ones(1).to(torch.float64).dtype is torch.float64
    finally:
        reads.stop()
    assert reads.describe(1) == []


def test_a_read_that_fails_fails_as_ever(reads: HostReads) -> None:
    reads.start()
    try:
        with pytest.raises(RuntimeError, match="2 elements"):
            torch.ones(2).item()
    finally:
        reads.stop()


@pytest.mark.gpu
def test_reading_a_gpus_value_is_counted_with_its_wait() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    reads = HostReads()
    tensor = torch.ones(1, device="cuda")
    reads.start()
    try:
        torch.cuda._sleep(50_000_000)  # the host has to wait for it
        assert tensor.item() == 1.0
        assert tensor.to("cpu").device.type == "cpu"
        assert (tensor + 1).to(torch.float64).device.type == "cuda"
    finally:
        reads.stop()
    found = {row["call"]: row for row in reads.describe(1)}
    assert set(found) == {"item", "to"}
    assert found["item"]["waited_s"] > 0.001
