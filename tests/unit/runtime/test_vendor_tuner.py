"""A tuner of the network's maker behind ours: a stand-in in C is asked always, and outvoted only where we choose."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from fleet_advisor_runtime.nccl_tuner import plugin

from .test_nccl_tuner import ALL_GATHER, ALL_REDUCE, LL, LL128, RING, SIMPLE, TREE, Nccl

SOURCE = Path(__file__).with_name("vendor_tuner.c")
THEIRS = (RING, LL128)


class Vendor:
    """The stand-in, and what it counted."""

    def __init__(self, folder: Path, version: int, symbol: str = "") -> None:
        self.path = folder / f"libnccl-net-stand-in-{version}.so"
        name = symbol or f"ncclTunerPlugin_v{version}"
        words = [str(plugin.find_compiler()), "-shared", "-fPIC", f"-DVERSION={version}", f"-DSYMBOL={name}"]
        subprocess.run([*words, "-o", self.path, SOURCE], check=True, timeout=60)

    def read(self, name: str) -> int:
        return ctypes.c_int.in_dll(ctypes.CDLL(str(self.path)), name).value


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Our plugin as a rank loads it: another copy for each rank, that each looks for its vendor anew."""
    if plugin.find_compiler() is None:
        pytest.skip("no C compiler on this machine")
    for name in (*plugin.VARIABLES.values(), plugin.PLUGIN, plugin.VENDOR, "NCCL_NET_PLUGIN"):
        monkeypatch.delenv(name, raising=False)

    def load(vendor: str, **asked: str) -> str:
        variables = {
            "NCCL_TUNER_PLUGIN": vendor,
            **{f"FLEET_NCCL_{name}": value for name, value in asked.items()},
        }
        plugin.load_where_asked(variables, str(tmp_path))
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert plugin.is_ours(variables[plugin.PLUGIN])
        return variables[plugin.PLUGIN]

    return load


@pytest.mark.parametrize("version", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("spoken", [3, 4, 5, 6])
def test_it_is_asked_every_time_and_outvoted_in_one_cell_only(
    version: int, spoken: int, tmp_path: Path, launch: Callable[..., str]
) -> None:
    vendor = Vendor(tmp_path, version)
    ours = launch(str(vendor.path), ALLREDUCE="tree/simple@4194304", CHANNELS="4")
    nccl = Nccl(ours, spoken)
    told = [nccl.choose(ALL_REDUCE, 2**20), nccl.choose(ALL_REDUCE, 2**22), nccl.choose(ALL_REDUCE, 100),
            nccl.choose(ALL_GATHER, 2**20), nccl.choose(7, 2**20)]  # fmt: skip
    nccl.end()
    counts = [vendor.read(name) for name in ("begun", "asked", "ended")]
    if version > spoken:  # NCCL itself would not speak it, and is told so in the proof
        assert counts == [0, 0, 0]
        return
    assert counts == [1, 5, 1]
    assert [(chosen, channels) for chosen, channels, _ in told] == [((TREE, SIMPLE), 4), *[(THEIRS, 7)] * 4]
    assert vendor.read("told_ranks") == 8
    assert vendor.read("told_id") == (77 if version >= 5 else 0)
    proved, sentence = plugin.prove_choice("nccl_tuner_allreduce", "tree/simple@4194304")
    assert proved
    assert sentence.endswith(
        f"The network's own tuner (stand-in, version {version}) was asked 4 times before."
    )


def test_its_channels_are_not_those_of_our_choice(tmp_path: Path, launch: Callable[..., str]) -> None:
    nccl = Nccl(launch(str(Vendor(tmp_path, 4).path), ALLREDUCE="ring/simple"), 4)
    assert nccl.choose(ALL_REDUCE)[:2] == ((RING, SIMPLE), 0)


def test_what_it_rules_out_stays_so(
    tmp_path: Path, launch: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VENDOR_RULES_OUT_TREES", "1")
    nccl = Nccl(launch(str(Vendor(tmp_path, 4).path), ALLREDUCE="tree/simple"), 4)
    assert nccl.choose(ALL_REDUCE)[:2] == (THEIRS, 7)
    assert plugin.prove_choice("nccl_tuner_allreduce", "tree/simple")[0] is False


def test_its_chunks_are_kept(tmp_path: Path, launch: Callable[..., str]) -> None:
    for version, expected in ((6, 4242), (5, 100)):
        nccl = Nccl(launch(str(Vendor(tmp_path, version).path), ALLREDUCE="tree/simple"), 6)
        size = ctypes.c_size_t(100)
        assert nccl.tuner.size_chunks(nccl.context, ALL_REDUCE, 2**20, 0, 0, 1, ctypes.byref(size)) == 0
        assert size.value == expected


@pytest.mark.parametrize("version", [2, 4, 6])
def test_one_that_fails_to_begin_fails_as_without_us(
    version: int, tmp_path: Path, launch: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = launch(str(Vendor(tmp_path, version).path), ALLREDUCE="tree/simple")
    monkeypatch.setenv("VENDOR_FAILS", "1")
    assert Nccl(ours, 6, expected=(3,)).context.value is None


def test_without_one_we_choose_alone(tmp_path: Path, launch: Callable[..., str]) -> None:
    nameless = Vendor(tmp_path, 4, "something_else")
    for vendor in ("/nowhere/libnccl-net.so", "none", str(nameless.path)):
        nccl = Nccl(launch(vendor, ALLREDUCE="ring/simple"), 4)
        assert (nccl.choose(ALL_REDUCE)[0], nccl.choose(ALL_GATHER)[0]) == ((RING, SIMPLE), (TREE, LL))
        proved, sentence = plugin.prove_choice("nccl_tuner_allreduce", "ring/simple")
        assert proved
        assert "network's own tuner" not in sentence
        nccl.end()


def test_one_that_speaks_later_versions_only_proves_nothing(
    tmp_path: Path, launch: Callable[..., str]
) -> None:
    Nccl(launch(str(Vendor(tmp_path, 6, "ncclTunerPlugin_v9").path), ALLREDUCE="ring/simple"), 6).choose(
        ALL_REDUCE
    )
    proved, sentence = plugin.prove_choice("nccl_tuner_allreduce", "ring/simple")
    assert not proved
    assert "speaks no version" in sentence


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ["libnccl-tuner.so", "libnccl-net.so"]),
        ({"NCCL_TUNER_PLUGIN": "ofi"}, ["ofi", "libnccl-tuner-ofi.so", "libnccl-net.so"]),
        ({"NCCL_NET_PLUGIN": "aws,none"}, ["libnccl-tuner.so", "aws", "libnccl-net-aws.so"]),
        ({"NCCL_NET_PLUGIN": "none"}, ["libnccl-tuner.so"]),
        ({"NCCL_TUNER_PLUGIN": "None", "NCCL_NET_PLUGIN": "aws"}, []),
    ],
)
def test_it_is_looked_for_where_nccl_looks(variables: dict[str, str], expected: list[str]) -> None:
    assert plugin.list_vendors(variables) == expected
