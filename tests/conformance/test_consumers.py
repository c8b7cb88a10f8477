"""What the other tests here read exports with can be had: `make consumers` fetches it ahead of them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from advisor.protocol.knobs.paddle import VERSIONS

from .test_cluster_files import python as schedulers_python  # noqa: F401
from .test_older_torch import old_python  # noqa: F401
from .test_torch_versions import WHEELS, provide_sources

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("version", VERSIONS)
def test_paddle_is_there(version: str, paddle_python: Callable[[str], Path]) -> None:
    assert paddle_python(version).exists()


@pytest.mark.parametrize("name", ["deepspeed_python", "schedulers_python", "old_python", "trl_python"])
def test_environment_is_there(name: str, request: pytest.FixtureRequest) -> None:
    assert Path(request.getfixturevalue(name)).exists()


@pytest.mark.parametrize("version", WHEELS)
def test_sources_are_there(version: str) -> None:
    if isinstance(found := provide_sources(version), str):
        pytest.skip(found)
