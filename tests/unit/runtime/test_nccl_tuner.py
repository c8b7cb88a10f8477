"""NCCL's tuner plugin: compiled by this machine's compiler, loaded and asked as NCCL does, with made-up costs."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from fleet_advisor_runtime.nccl_tuner import plugin

TREE, RING, COLLNET, NVLS, NVLS_TREE, PAT = 0, 1, 2, 4, 5, 6
LL, LL128, SIMPLE = 0, 1, 2
BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, SEND = 0, 2, 3, 4, 6
ALGORITHMS, PROTOCOLS, IGNORE = 7, 3, -1.0
MIB = 2**20

INIT = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
)
COLLECTIVE = (
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_int,
)
CHANNELS = ctypes.POINTER(ctypes.c_int)
CHOOSE = {3: ctypes.CFUNCTYPE(ctypes.c_int, *COLLECTIVE, CHANNELS),
          4: ctypes.CFUNCTYPE(ctypes.c_int, *COLLECTIVE, ctypes.c_int, CHANNELS)}  # fmt: skip
CHOOSE[5] = CHOOSE[6] = CHOOSE[4]
INIT_5 = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint64, ctypes.c_size_t, ctypes.c_size_t,
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
)  # fmt: skip
CHUNKS = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
    ctypes.POINTER(ctypes.c_size_t),
)  # fmt: skip
DESTROY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Nccl:
    """The caller's side of the interface, in the version that is asked for."""

    def __init__(self, path: str, version: int, expected: tuple[int, ...] = (0,)) -> None:
        fields = [
            ("name", ctypes.c_char_p),
            ("init", INIT if version < 5 else INIT_5),
            ("choose", CHOOSE[version]),
            ("destroy", DESTROY),
            *([("size_chunks", CHUNKS)] if version == 6 else []),
        ]
        layout = type("Tuner", (ctypes.Structure,), {"_fields_": fields})
        self.version = version
        self.tuner = layout.in_dll(ctypes.CDLL(path), f"ncclTunerPlugin_v{version}")
        self.context = ctypes.c_void_p()
        made = ctypes.byref(self.context)
        if version < 5:
            self.began = self.tuner.init(8, 2, None, made)
        else:
            self.began = self.tuner.init(made, 77, 8, 2, None, None, None)
        assert self.began in expected

    def choose(
        self, collective: int, size: int = MIB, costs: list[float] | None = None, algorithms: int = ALGORITHMS
    ) -> tuple[tuple[int, int], int, list[float]]:
        """Algorithm and protocol with the lowest cost as NCCL looks for it, channels (0: its own), the table after."""
        own = costs or [10.0 + i for i in range(algorithms * PROTOCOLS)]
        table = (ctypes.c_float * len(own))(*own)
        channels = ctypes.c_int(0)
        registered = (0,) if self.version >= 4 else ()
        code = self.tuner.choose(
            self.context, collective, size, 1, ctypes.addressof(table), algorithms, PROTOCOLS, *registered,
            ctypes.byref(channels),
        )  # fmt: skip
        assert code == 0
        after = list(table)
        best = min((cost, place) for place, cost in enumerate(after) if cost >= 0.0)[1]
        return divmod(best, PROTOCOLS), channels.value, after

    def end(self) -> None:
        assert self.tuner.destroy(self.context) == 0


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> str:
    if plugin.find_compiler() is None:
        pytest.skip("no C compiler on this machine")
    return plugin.build(str(tmp_path_factory.mktemp("plugin")))


@pytest.mark.parametrize("newest", [3, 4, 5, 6])
def test_nccl_finds_the_newest_version_that_it_looks_for(newest: int, built: str) -> None:
    """NCCL asks for its versions from the newest down to v2: 2.23 begins with v3, 2.32.3 with v6."""
    library = ctypes.CDLL(built)
    found = [version for version in range(newest, 1, -1) if hasattr(library, f"ncclTunerPlugin_v{version}")]
    assert found[0] == newest


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in (*plugin.VARIABLES.values(), plugin.PLUGIN, plugin.VENDOR, "NCCL_NET_PLUGIN"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.fixture(params=[3, 4, 5, 6])
def open_nccl(built: str, variables: pytest.MonkeyPatch, request: pytest.FixtureRequest):
    opened = []

    def open_with(**asked: str) -> Nccl:
        for name, value in asked.items():
            variables.setenv(f"FLEET_NCCL_{name}", value)
        opened.append(Nccl(built, request.param))
        return opened[-1]

    yield open_with
    for nccl in opened:
        nccl.end()


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ("ring/simple", (RING, SIMPLE)),
        ("ring/ll", (RING, LL)),
        ("tree/simple", (TREE, SIMPLE)),
        ("tree/ll", (TREE, LL)),
        ("nvls/simple", (NVLS, SIMPLE)),
        ("nvlstree/simple", (NVLS_TREE, SIMPLE)),
        ("pat/simple", (PAT, SIMPLE)),
    ],
)
def test_the_choice_is_made_for_its_collective_only(asked: str, chosen: tuple[int, int], open_nccl) -> None:
    names = {"ALLREDUCE": ALL_REDUCE, "ALLGATHER": ALL_GATHER, "REDUCESCATTER": REDUCE_SCATTER}
    usual = (TREE, LL)
    for name, number in names.items():
        nccl = open_nccl(**{**dict.fromkeys(names, ""), name: asked})
        for collective in (*names.values(), BROADCAST, SEND, 14, -1):
            assert nccl.choose(collective)[0] == (chosen if collective == number else usual)


@pytest.mark.parametrize(
    "asked",
    [
        "ring/ll128",
        "tree/LL128",
        "ring/",
        "/simple",
        "ring",
        "",
        "collnet/simple",
        "ring/simple/8",
        "RING/SIMPLE",
        "/",
        "r/simple",
        "ring/s",
    ],
)
def test_what_is_no_choice_of_ours_leaves_everything_to_nccl(asked: str, open_nccl) -> None:
    nccl = open_nccl(ALLREDUCE=asked, CHANNELS="4")
    costs = [10.0 + i for i in range(ALGORITHMS * PROTOCOLS)]
    assert nccl.choose(ALL_REDUCE, costs=costs) == ((TREE, LL), 0, costs)


def test_ll128_is_never_chosen_whatever_is_asked(open_nccl) -> None:
    """Where NCCL itself holds it for the cheapest, that is NCCL's own choice; no word of ours makes it cheaper."""
    words = ("tree", "ring", "nvls", "nvlstree", "pat", "", "2")
    for algorithm in words:
        for protocol in ("ll", "ll128", "LL128", "simple", "", "1"):
            nccl = open_nccl(ALLREDUCE=f"{algorithm}/{protocol}")
            costs = [10.0 + i for i in range(ALGORITHMS * PROTOCOLS)]
            after = nccl.choose(ALL_REDUCE, costs=costs)[2]
            assert after[LL128::PROTOCOLS] == costs[LL128::PROTOCOLS], f"{algorithm}/{protocol}"


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ("tree/simple@1048576+ring/simple", {2**16: (TREE, SIMPLE), 2**20 - 1: (TREE, SIMPLE), 2**20: (RING, SIMPLE)}),
        ("ring/ll@1048576", {2**16: (RING, LL), 2**20: (TREE, LL)}),
        ("ring/ll@100000+nvls/simple@200000+ring/simple",
         {2**16: (RING, LL), 10**5: (NVLS, SIMPLE), 2**40: (RING, SIMPLE)}),
        ("ring/ll@", {2**16: (TREE, LL)}),
        ("ring/ll@many+ring/simple", {2**16: (TREE, LL), 2**30: (TREE, LL)}),
        ("ring/ll@1000000+", {2**16: (TREE, LL)}),
        ("ring/ll@1000000+ring/ll128", {2**16: (TREE, LL)}),
    ],
)  # fmt: skip
def test_each_band_of_sizes_has_its_choice(asked: str, chosen: dict[int, tuple[int, int]], open_nccl) -> None:
    nccl = open_nccl(ALLREDUCE=asked)
    assert {size: nccl.choose(ALL_REDUCE, size=size)[0] for size in chosen} == chosen


def test_small_messages_are_left_to_nccl(open_nccl) -> None:
    nccl = open_nccl(ALLREDUCE="ring/simple")
    assert nccl.choose(ALL_REDUCE, size=65535)[0] == (TREE, LL)
    assert nccl.choose(ALL_REDUCE, size=65536)[0] == (RING, SIMPLE)
    assert nccl.choose(ALL_REDUCE, size=2**40)[0] == (RING, SIMPLE)


def test_what_nccl_says_it_cannot_do_stays_impossible(open_nccl, built: str) -> None:
    nccl = open_nccl(ALLREDUCE="nvls/simple", CHANNELS="4")
    costs = [10.0 + i for i in range(ALGORITHMS * PROTOCOLS)]
    costs[NVLS * PROTOCOLS + SIMPLE] = IGNORE
    costs[RING * PROTOCOLS + LL] = IGNORE
    before = plugin.count_choices(built)
    assert nccl.choose(ALL_REDUCE, costs=costs) == ((TREE, LL), 0, costs)
    after = plugin.count_choices(built)
    assert after["impossible"][ALL_REDUCE] == before["impossible"][ALL_REDUCE] + 1
    assert after["chosen"] == before["chosen"]


def test_an_older_nccl_with_fewer_algorithms_is_not_overrun(open_nccl) -> None:
    nccl = open_nccl(REDUCESCATTER="pat/simple")
    costs = [10.0 + i for i in range(6 * PROTOCOLS)] + [99.0] * PROTOCOLS
    chosen, _, after = nccl.choose(REDUCE_SCATTER, costs=costs, algorithms=6)
    assert (chosen, after) == ((TREE, LL), costs)


@pytest.mark.parametrize(
    ("choice", "asked", "given"),
    [("ring/simple", "8", 8), ("tree/ll", "1", 1), ("ring/ll", "500", 32), ("nvls/simple", "8", 0),
     ("ring/simple", "0", 0), ("ring/simple", "-3", 0), ("ring/simple", "many", 0)],
)  # fmt: skip
def test_channels_are_those_of_rings_and_trees(choice: str, asked: str, given: int, open_nccl) -> None:
    assert open_nccl(ALLREDUCE=choice, CHANNELS=asked).choose(ALL_REDUCE)[1] == given


def test_a_communicator_keeps_what_it_was_made_with(open_nccl) -> None:
    """Ranks make it together: what changes later must not change the choice of one of them."""
    nccl = open_nccl(ALLREDUCE="ring/simple")
    later = open_nccl(ALLREDUCE="tree/simple")
    assert (nccl.choose(ALL_REDUCE)[0], later.choose(ALL_REDUCE)[0]) == ((RING, SIMPLE), (TREE, SIMPLE))


# The rank's side.


def test_a_rank_builds_it_where_it_is_asked_to_and_nowhere_else(
    tmp_path: Path, variables: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for untouched in (
        {},
        {"FLEET_NCCL_ALLREDUCE": ""},
        {"FLEET_NCCL_ALLREDUCE": "ring/ll", plugin.PLUGIN: f"/x/{plugin.FILE}"},
    ):
        before = dict(untouched)
        plugin.load_where_asked(untouched, str(tmp_path))
        assert untouched == before
    assert list(tmp_path.iterdir()) == []
    asked = {"FLEET_NCCL_ALLREDUCE": "ring/simple"}
    if plugin.find_compiler() is None:
        pytest.skip("no C compiler on this machine")
    plugin.load_where_asked(asked, str(tmp_path))
    path = Path(asked[plugin.PLUGIN])
    assert path.is_file()
    assert path.is_relative_to(tmp_path)
    assert path.parent.stat().st_mode & 0o077 == 0, "nobody else may put a library there"
    variables.setattr(plugin, "COMPILERS", ("no-such-compiler",))
    asked = {"FLEET_NCCL_ALLREDUCE": "ring/simple"}
    plugin.load_where_asked(asked, str(tmp_path))
    assert plugin.PLUGIN not in asked
    assert "NCCL chooses by itself: No C compiler" in capsys.readouterr().err


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, variables: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'cannot find crt1.o' >&2\nexit 1\n")
    compiler.chmod(0o755)
    variables.setenv("PATH", str(tmp_path))
    with pytest.raises(
        plugin.Unbuildable, match=r"cc did not compile NCCL's tuner plugin: cannot find crt1\.o"
    ):
        plugin.build(str(tmp_path))


@pytest.mark.parametrize(
    ("version", "environment", "words"),
    [
        ((2, 27, 3), {}, None),
        (None, {}, "built without NCCL"),
        ((2, 21, 5), {}, "NCCL 2.21.5 hands a tuner plugin no table of costs"),
        (
            (2, 27, 3),
            {"NCCL_TUNER_PLUGIN": "libnccl-ofi-tuner.so"},
            None,
        ),
        ((2, 21, 5), {"NCCL_TUNER_PLUGIN": f"/x/{plugin.FILE}"}, None),
        ((2, 27, 3), {"PATH": "/nowhere"}, "No C compiler"),
    ],
)
def test_it_is_refused_with_a_sentence(
    version: tuple[int, ...] | None,
    environment: Mapping[str, str],
    words: str | None,
    variables: pytest.MonkeyPatch,
) -> None:
    if words is None and plugin.find_compiler() is None:
        pytest.skip("no C compiler on this machine")
    for name, value in environment.items():
        variables.setenv(name, value)
    sentence = plugin.explain_no_choice(version)
    assert (sentence is None) if words is None else (words in str(sentence))


def test_a_plugin_that_only_nccls_file_names_is_refused(variables: pytest.MonkeyPatch) -> None:
    variables.setattr(plugin, "read_variable", lambda name: "theirs.so")
    assert "nccl.conf sets NCCL_TUNER_PLUGIN=theirs.so" in str(plugin.explain_no_choice((2, 27, 3)))


def test_a_choice_is_proved_by_what_the_loaded_plugin_counted(
    tmp_path: Path, variables: pytest.MonkeyPatch
) -> None:
    if plugin.find_compiler() is None:
        pytest.skip("no C compiler on this machine")
    path = plugin.build(str(tmp_path))
    variables.setenv(plugin.PLUGIN, path)
    knob = "nccl_tuner_allreduce"
    assert "has not loaded" in plugin.prove_choice(knob, "ring/simple")[1], "built, and loaded by nobody"
    variables.setenv("FLEET_NCCL_ALLREDUCE", "ring/simple")
    nccl = Nccl(path, 4)
    assert plugin.prove_choice(knob, "ring/simple")[1].startswith(
        "NCCL's tuner plugin chose ring/simple 0 times"
    )
    assert plugin.prove_choice(knob, "ring/simple")[0] is False, "loaded, and asked nothing"
    nccl.choose(ALL_REDUCE)
    assert plugin.prove_choice(knob, "ring/simple") == (
        True,
        "NCCL's tuner plugin chose ring/simple 1 times, and 0 times NCCL said that it cannot.",
    )
    assert plugin.prove_choice("nccl_tuner_all_gather", "ring/simple")[0] is False
    assert plugin.prove_choice("nccl_tuner_channels", 8)[0] is False
    variables.setenv("FLEET_NCCL_CHANNELS", "8")
    Nccl(path, 4).choose(ALL_REDUCE)
    assert plugin.prove_choice("nccl_tuner_channels", 8)[0] is True
    variables.setenv(plugin.PLUGIN, str(shutil.copy(path, tmp_path / "theirs.so")))
    Nccl(os.environ[plugin.PLUGIN], 4).choose(ALL_REDUCE)
    assert plugin.prove_choice(knob, "ring/simple")[0] is False, "another's plugin"


@pytest.mark.parametrize("way", ["in front", "joining"])
def test_the_plugin_stands_there_before_the_script_begins_and_goes_with_it(way: str, tmp_path: Path) -> None:
    if plugin.find_compiler() is None:
        pytest.skip("no C compiler on this machine")
    script = tmp_path / "script.py"
    script.write_text(
        "import os\npath = os.environ['NCCL_TUNER_PLUGIN']\nprint(path, os.path.isfile(path))\n"
        "if os.fork() == 0:\n    raise SystemExit\nos.wait()\nprint(os.path.isfile(path))\n"
    )
    launch = Path(plugin.__file__).parents[1] / "launch.py"
    watch = f"import runpy; runpy.run_path({str(launch)!r})['watch'](); runpy.run_path({str(script)!r})"
    words = [str(launch), str(script)] if way == "in front" else ["-c", watch]
    environment = {**os.environ, "FLEET_NCCL_ALLREDUCE": "ring/simple", "ADVISOR_SESSION_DIR": str(tmp_path)}
    environment.pop(plugin.PLUGIN, None)
    done = subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    path, found, after = done.stdout.split()
    assert (found, after) == ("True", "True"), "a forked child takes nothing with it"
    assert Path(path).is_relative_to(tmp_path)
    assert not Path(path).exists()
