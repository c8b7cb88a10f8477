"""Measured knobs that are arguments of the script's own objects: every PyTorch export says what to write where."""

import pytest

from advisor.exporters.formats import export

BY_HAND = {
    "loader_num_workers": (4, "DataLoader(..., num_workers=4)"),
    "loader_prefetch_factor": (8, "DataLoader(..., prefetch_factor=8)"),
    "loader_pin_memory": (True, "DataLoader(..., pin_memory=True)"),
    "sharding_stage": (2, "set_reshard_after_forward(False, recurse=False)"),
}


@pytest.mark.parametrize("format", ["wrapper", "pytorch", "paddle"])
def test_what_no_file_can_set_is_left_out_with_the_w(format: str, advise) -> None:
    advice, job = advise({name: value for name, (value, _) in BY_HAND.items()})
    file = export(advice, job, format)
    assert set(BY_HAND) <= set(file.unmapped)
    for name, (_, words) in BY_HAND.items():
        assert words in file.unmapped[name] or format == "paddle"
        assert name in file.content
