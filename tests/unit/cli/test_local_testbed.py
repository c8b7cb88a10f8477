"""A machine that cannot build a testbed says why, before anything is started."""

import os
from pathlib import Path

import pytest

from advisor.local.server import LocalModeFailed
from advisor.local.testbed import require_testbed, unavailable_because
from advisor.protocol.nodes.testbed import Testbed

from .conftest import Run


def test_user_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LocalModeFailed, match="root") as refused:
        require_testbed(Testbed(nodes=2, rate="1gbit"))
    assert refused.value.hint
    result = run("tune", "--testbed", "nodes=2,rate=1gbit", "--workload", "decoder", ADVISOR_URL=None)
    assert result.exit_code == 1
    assert "needs root" in result.stderr


def test_missing_tools_are_named_with_their_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    sentence = unavailable_because()
    assert sentence is not None
    assert "ip and tc" in sentence
    assert "iproute2" in sentence
