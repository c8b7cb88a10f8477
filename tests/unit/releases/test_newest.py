"""Whether the page of torch's releases lags behind the registry."""

import pytest

from tests.releases.command import main
from tests.releases.newest import find_lag


@pytest.mark.parametrize(
    ("newest", "lags"),
    [
        ("2.14.1", False),
        ("2.15.0", False),
        ("2.15.3", False),
        ("2.13.0", False),
        ("2.16.0", True),
        ("3.0.0", True),
    ],
)
def test_more_than_one_minor_behind_is_told_with_the_command(newest: str, lags: bool) -> None:
    told = find_lag(["2.6.0", "2.14.1", "2.9.1"], newest)
    assert bool(told) is lags
    assert (f'make matrix TORCH="{newest}"' in told) is lags


def test_where_no_registry_answers_it_is_said_and_nothing_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    assert main(["--newest"]) == 0
    assert "No registry answered" in capsys.readouterr().out


def test_a_knob_that_is_not_tried_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["2.13.0", "--knob", "none_such"])
    assert "--knob: tests/releases/trials.py tries no knob 'none_such'" in capsys.readouterr().err
