"""Measured knobs that are arguments of the script's own objects: every PyTorch export says what to write where."""

import pytest

from advisor.exporters.formats import export

BY_HAND = {
    "loader_num_workers": (4, "DataLoader(..., num_workers=4)"),
    "loader_prefetch_factor": (8, "DataLoader(..., prefetch_factor=8)"),
    "loader_pin_memory": (True, "DataLoader(..., pin_memory=True)"),
    "sharding_stage": (3, "set_reshard_after_forward(True, recurse=False)"),
    "sharding_gather_ranks": (4, "fully_shard(..., reshard_after_forward=4)"),
    "sharding_forward_prefetch": (2, "each sharded module with the 2 after it"),
    "sharding_backward_prefetch": (3, "each sharded module with the 3 before it"),
    "sharding_separate_reduction": (True, "set_separate_reduce_scatter_group(True)"),
    "sharding_reduce_buffers": (2, "set_reduce_scatter_max_input_buffers(2)"),
    "sharding_group_memory": (True, "set_allocate_memory_from_process_group_for_comm(True)"),
}


@pytest.mark.parametrize("format", ["accelerate", "paddle"])
def test_what_no_file_can_set_is_left_out_with_the_w(format: str, advise) -> None:
    advice, job = advise({name: value for name, (value, _) in BY_HAND.items()})
    file = export(advice, job, format)
    assert set(BY_HAND) <= set(file.unmapped)
    for name, (_, words) in BY_HAND.items():
        assert words in file.unmapped[name] or format == "paddle"
        assert name in file.content
