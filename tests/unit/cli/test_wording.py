"""How values, rates and durations read."""

import pytest

from advisor.answers.wording import count, spell_changes, spell_duration, spell_value
from advisor.protocol.base import Value
from advisor.protocol.gains import spell_rate


@pytest.mark.parametrize(
    ("name", "value", "spelt"),
    [
        ("fuse_grad_size_in_MB", 32.0, "32 MB"),
        ("fuse_all_reduce_ops", False, "off"),
        ("localsgd_k_steps", 1, "1 step"),
        ("localsgd_k_steps", 4, "4 steps"),
        ("loader_num_workers", 1, "1 process"),
        ("loader_num_workers", 2, "2 processes"),
        ("loader_prefetch_factor", 1, "1 batch"),
        ("fp16_allreduce_dtype", "bf16", "bf16"),
        ("a_knob_of_a_newer_server", 3, "3"),
    ],
)
def test_values_read_with_their_unit(name: str, value: Value, spelt: str) -> None:
    assert spell_value(name, value) == spelt


@pytest.mark.parametrize(
    ("rate", "spelt"),
    [(12_345.6, "12 346"), (1842, "1 842"), (161.27, "161"), (96.42, "96.4"), (0.5123, "0.512")],
)
def test_rates_have_as_many_digits_as_they_mean(rate: float, spelt: str) -> None:
    assert spell_rate(rate) == spelt


@pytest.mark.parametrize(
    ("seconds", "spelt"), [(41, "41 s"), (600, "10 min"), (14_000, "3.9 h"), (200_000, "2.3 days")]
)
def test_durations_have_the_unit_that_people_would_choose(seconds: float, spelt: str) -> None:
    assert spell_duration(seconds) == spelt


def test_plurals() -> None:
    assert (count(1, "launch", "launches"), count(2, "launch", "launches")) == ("1 launch", "2 launches")


def test_no_changes_are_the_users_settings() -> None:
    assert spell_changes({}) == "your settings"
