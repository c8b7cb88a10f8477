"""A user's own knobs: how they are typed, what the command says today, and where a strategy puts them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from advisor.protocol.asked.jobs import JobSpec
from advisor.protocol.expressions import evaluate, holds, list_names
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.training.key_files import list_branches, list_keys, read_key, read_tree, set_keys
from advisor.protocol.training.own_knob_texts import read_commands, read_own_knob, read_variants
from advisor.protocol.training.own_knobs import Faster
from advisor.protocol.training.settling import list_file_values, list_variables, replace_path, settle
from advisor.protocol.training.workload import Workload, WorkloadFacts
from agent.files import DIRECT

COMMAND = ("torchrun", "train.py", "--batch", "4", "--acc=${acc:-2}", "lr=0.1", "--config", "c.toml")


def make_workload(*own: Any, command: tuple[str, ...] = COMMAND, **fields: Any) -> Workload:
    return Workload(command=command, own=own, **fields)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("micro=1,2,4:exact", {"name": "micro", "at": "", "values": (1, 2, 4), "effect": "exact"}),
        ("--batch-size=1,2", {"name": "batch_size", "at": "--batch-size", "values": (1, 2)}),
        ("$OMP_X=0.5,1", {"name": "OMP_X", "at": "$OMP_X", "values": (0.5, 1)}),
        ("training.lr=0.1,0.2", {"name": "training_lr", "at": "training.lr", "values": (0.1, 0.2)}),
        ("c.toml:a.b=1,2", {"name": "a_b", "at": "c.toml:a.b", "values": (1, 2)}),
        ("ac=none,full:numeric", {"name": "ac", "at": "", "values": ("none", "full"), "effect": "numeric"}),
        ("n=1..4", {"name": "n", "at": "", "values": (1, 2, 3, 4)}),
        ("n=1..64:log", {"name": "n", "at": "", "values": (1, 2, 4, 8, 16, 32, 64)}),
        ("n=3..20:log", {"name": "n", "at": "", "values": (3, 6, 12, 20)}),
        ("x=1,2:more-is-faster", {"name": "x", "at": "", "values": (1, 2), "faster": Faster.MORE}),
        ("x=1,2:exact:hot", {"name": "x", "at": "", "values": (1, 2), "effect": "exact", "hot": True}),
    ],
)
def test_a_knob_is_typed_in_one_text(text: str, fields: dict[str, Any]) -> None:
    assert read_own_knob(text) == fields


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("micro", "names no values"),
        ("micro=", "names no values"),
        ("micro=1,,2", "empty value"),
        ("n=4..1", "a range goes from a number to a larger one"),
        ("n=0..4:log", "begins above 0"),
        ("n=1,2:exact:numeric", "says two things at once"),
    ],
)
def test_what_is_typed_wrong_is_told(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        read_own_knob(text)


def test_the_baseline_is_what_the_command_says_today() -> None:
    workload = make_workload(
        "--batch=1,2", "acc=1,4", "lr=0.2,0.3", "$N=1,2", "c.toml:a.b=7,8", environment={"N": "5"}
    )
    assert [knob.own_value for knob in workload.own] == [4, 2, 0.1, 5, 7]
    assert Workload.model_validate_json(
        workload.model_dump_json(context={"with_secrets": True}), strict=True
    ) == (workload)


def test_an_option_that_the_command_lacks_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValidationError, match=r"no option --missing: add it with today's value, or write"):
        make_workload("--missing=1,2")


def test_a_strategy_is_put_where_the_program_reads_it() -> None:
    workload = make_workload("--batch=1,2", "acc=1,4", "lr=0.2,0.3", "$N=1,2", "c.toml:a.b=7,8")
    settled = settle(workload, {"batch": 2, "acc": 4, "lr": 0.3, "N": 2, "a_b": 8})
    assert settled.command == (
        "torchrun", "train.py", "--batch", "2", "--acc=4", "lr=0.3", "--config", "c.toml"
    )  # fmt: skip
    assert settled.environment == {"N": "2"}
    assert list_file_values(workload, {"a_b": 8}) == {"c.toml": {"a.b": 8}}
    assert list_file_values(workload, {}) == {}
    assert replace_path(settled.command, "c.toml", "/s/c.toml")[-1] == "/s/c.toml"
    assert settle(workload, {}).command[4] == "--acc=2", "a place in the command is always filled"


def test_what_is_escaped_stays_the_programs_own() -> None:
    workload = make_workload("acc=1,2", command=("bash", "-c", "echo $${acc} ${acc}"))
    assert settle(workload, {"acc": 2}).command[-1] == "echo $${acc} 2"


def test_ranks_are_told_each_value_and_how_it_got_there() -> None:
    workload = make_workload("--batch=1,2:exact", "seen=1,2:hot")
    told = list_variables(workload.own, {"batch": 2})
    assert told["ADVISOR_KNOB_batch"] == "2"
    assert "ADVISOR_KNOB_seen" not in told, "the script has its own until a strategy changes it"
    assert list_variables(workload.own, {"seen": 2})["ADVISOR_KNOB_seen"] == "2"
    about = json.loads(told["ADVISOR_OWN"])
    assert about["batch"] == {
        "how": "2 since the launch: --batch in the command.", "values": [1, 2], "hot": False, "exact": True,
    }  # fmt: skip
    assert (about["seen"]["how"], about["seen"]["hot"]) == ("", True)
    assert list_variables((), {}) == {}


def test_variants_put_their_words_and_variables() -> None:
    knob = read_variants(["ddp: --engine ddp", "fsdp:numeric: NCCL_X=1 --engine fsdp --shard 2"])
    workload = Workload(command=("torchrun", "t.py"), own=(knob,))
    assert workload.own[0].own_value == "ddp"
    assert settle(workload, {}).command == ("torchrun", "t.py", "--engine", "ddp")
    settled = settle(workload, {"variant": "fsdp"})
    assert settled.command == ("torchrun", "t.py", "--engine", "fsdp", "--shard", "2")
    assert settled.environment == {"NCCL_X": "1"}
    between = workload.model_copy(update={"command": ("torchrun", "${variant}", "t.py")})
    assert settle(between, {}).command == ("torchrun", "--engine", "ddp", "t.py")
    for wrong in (["ddp: x"], ["ddp: x", "ddp: y"], ["ddp x", "b: y"]):
        with pytest.raises(ValueError, match="variant"):
            read_variants(wrong)


def test_whole_commands_are_values_too() -> None:
    knob = read_commands(["torchrun a.py", "X=1 torchrun b.py --fast"], Effect.EXACT)
    workload = Workload(command=("torchrun", "a.py"), own=(knob,))
    settled = settle(workload, {"command": "B"})
    assert (settled.command, settled.environment) == (("torchrun", "b.py", "--fast"), {"X": "1"})


def make_spec(*own: Any, **fields: Any) -> JobSpec:
    require = fields.pop("require", ())
    return JobSpec(workload=make_workload(*own, require=require), **fields)


def test_a_jobs_catalogue_holds_fleets_knobs_and_its_own() -> None:
    spec = make_spec("--batch=1,2:exact", "ac=none,full")
    assert spec.catalogue.keys() - CATALOGUE.keys() == {"batch", "ac"}
    assert spec.catalogue.effect_of({"batch": 2}) is Effect.EXACT
    assert spec.catalogue.effect_of({"batch": 2, "ac": "full"}) is Effect.CONVERGENCE, "undeclared"
    assert spec.catalogue.keep_cold({"batch": 2, "fuse_grad_size_in_MB": 4.0}) == {"batch": 2}
    assert spec.catalogue["batch"].own_values == (1, 2, 4), "today's value is one of them"
    assert JobSpec.model_validate({**spec.model_dump(), "verify": {"batch": 2}}).verify == Changes(
        {"batch": 2}
    )


@pytest.mark.parametrize(
    ("own", "require", "told"),
    [
        (["num_threads=1,2"], (), "num_threads is a knob that every job has"),
        (["world_size=1,2"], (), "means something else"),
        (["acc=1,2"], ("acc * micro == 2",), "micro is neither a knob of this job"),
        (["acc=1,2"], ("acc == 1",), r"today's command breaks it \(acc is 2\)"),
        (["acc=1,2"], ("acc ==",), "cannot be read"),
        (["acc=1,2", "acc=2,3"], (), "acc: give each knob of your own once"),
        (["x=a,b", {"name": "y", "values": [1, "a"]}], (), "mixes numbers and words"),
    ],
)
def test_knobs_and_requirements_of_no_sense_are_refused(
    own: list[Any], require: tuple[str, ...], told: str
) -> None:
    with pytest.raises(ValidationError, match=told):
        make_spec(*own, require=require)


def test_requirements_are_computed() -> None:
    values = {"micro": 2, "acc": 4, "ac": "full", "world_size": 8}
    assert holds("micro * acc == 8 and ac in ('full', 'none')", values)
    assert holds("not micro > 2 and 1 < acc <= 4 and world_size % micro == 0", values)
    assert not holds("micro // 3 == 1", values)
    assert not holds("micro / 0 == 1", values), "what cannot be told does not hold"
    assert not holds("micro == missing", values)
    assert list_names("a * b == c") == ("a", "b", "c") or set(list_names("a * b == c")) == {"a", "b", "c"}
    with pytest.raises(ValueError, match="divides by zero"):
        evaluate("micro / 0", values)


@pytest.mark.parametrize(
    "text",
    ["__import__('os').system('x')", "micro ** 9", "micro.real", "(lambda: 1)()", "[m for m in 'a']",
     "micro if 1 else 2",
     "f'{micro}'", "micro[0]", "9" * 400],
)  # fmt: skip
def test_nothing_but_the_grammar_is_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"not understood|at most|cannot be read"):
        list_names(text)


@given(st.text(max_size=60))
def test_no_text_does_anything_but_be_read_or_refused(text: str) -> None:
    assert holds(text, {"a": 1}) in (True, False)


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".toml", "[training]\nbatch = 4\nfast = false\nlr = 0.5\n"),
        (".json", '{"training": {"batch": 4, "fast": false, "lr": 0.5}}'),
        (".yaml", "training:\n  batch: 4\n  fast: false\n  lr: 0.5\n"),
    ],
)
def test_keys_of_files_are_read_and_changed_in_their_types(tmp_path: Path, suffix: str, text: str) -> None:
    path = tmp_path / f"c{suffix}"
    path.write_text(text)
    assert (read_key(path, "training.batch"), read_key(path, "training.fast")) == (4, False)
    changed, fault = DIRECT.change_keys(
        path, {"training.batch": 8, "training.fast": "true", "training.lr": 1}
    )
    assert not fault
    path.write_text(changed)
    assert read_key(path, "training.batch") == 8
    assert read_key(path, "training.fast") is True
    assert isinstance(read_key(path, "training.lr"), float)
    with pytest.raises(ValueError, match=r"has no key training\.missing"):
        set_keys({"training": {}}, {"training.missing": 1})
    with pytest.raises(ValueError, match=r"has no key training\.bacth: did you mean training\.batch"):
        read_key(path, "training.bacth")


def test_nothing_but_the_named_key_of_a_yaml_file_changes(tmp_path: Path) -> None:
    """Readers of YAML 1.1 and 1.2 see the same as before, and a tag is still there for the program that knows it."""
    path = tmp_path / "c.yaml"
    path.write_text(
        "base: &base {lr: 0.5, mode: on}\nfirst: *base\nsecond:\n  <<: *base\n  port: 010\n"
        "time: 12:30\nanswer: yes\npath: !include x.yaml\nname: '1e3'\n"
    )
    changed, fault = DIRECT.change_keys(path, {"first.lr": 2, "second.lr": 3, "name": "2e3"})
    assert not fault
    path.write_text(changed)
    keys = ("base.lr", "first.lr", "second.lr", "first.mode", "second.mode", "name")
    assert [read_key(path, key) for key in keys] == [0.5, 2.0, 3.0, True, True, "2e3"]
    for line in ("time: 12:30", "answer: yes", "path: !include 'x.yaml'", "port: 010", 'name: "2e3"'):
        assert line in changed, changed


def test_a_branch_that_many_places_share_is_walked_once(tmp_path: Path) -> None:
    """Three names of one branch on each of 12 levels: half a million keys for whoever counts them all."""
    levels = ["a0: &a0 {leaf: 1}"] + [
        f"a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}, z: *a{n - 1}}}" for n in range(1, 12)
    ]
    tree = read_tree("\n".join(levels), ".yaml")
    assert len(list_keys(tree)) < 200
    with pytest.raises(ValueError, match=r"has no key a3\.w\.x"):
        set_keys(tree, {"a3.w.x": 1})
    loop = read_tree("a: &a {b: *a, c: 1}", ".yaml")
    assert list_keys(loop) == ["a.c"]
    assert "<<" not in list_branches(read_tree("a: &a {<<: *a, c: 1}", ".yaml"))


def test_a_file_that_the_command_does_not_name_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"the command does not name other\.toml"):
        make_workload("other.toml:training.batch=1,2")
    words = {"a": ("--with", "x"), "b": ("--with=other.toml",)}
    variants = {"name": "variant", "values": tuple(words), "words": words}
    assert make_workload("other.toml:training.batch=1,2", variants).own[0].file


@pytest.mark.parametrize("number", ["1e999", "9" * 299, "micro", "-1e999", "0 * 1e999", "micro * 0 + 1e16"])
def test_samples_beyond_every_quantity_are_refused(number: str) -> None:
    with pytest.raises(ValidationError, match=r"1e\+15"):
        make_workload("micro=1e308,1", samples_per_step=number)


EXTREME = ["1e-320", "1e308", "-1e308", "1e999", "9" * 400, "1e16", "0", "1", "nan", "inf", "-5e-324"]


@pytest.mark.parametrize("low", EXTREME)
@pytest.mark.parametrize("high", EXTREME)
@pytest.mark.parametrize("flag", ["", ":log"])
def test_a_range_is_spread_between_its_ends_or_refused(low: str, high: str, flag: str) -> None:
    try:
        values = read_own_knob(f"micro={low}..{high}{flag}")["values"]
    except ValueError:
        return
    if not isinstance(values[0], str):
        assert (values[0], values[-1]) == (float(f"{float(low):.6g}"), float(f"{float(high):.6g}"))
        assert len(values) <= 64


def test_what_everybody_is_shown_has_a_size() -> None:
    words = {"a": ("x" * 25_000,), "b": ("x" * 25_001,)}
    with pytest.raises(ValidationError, match="at most 50000 characters"):
        make_workload({"name": "variant", "values": tuple(words), "words": words})
    needed = dict.fromkeys(
        (
            "world_size",
            "local_world_size",
            "gradient_bytes",
            "parameter_tensors",
            "layers",
            "batch_size_per_rank",
        ),
        1,
    )
    facts = WorkloadFacts.model_validate(
        {
            "backend": "gloo",
            "device": "cpu",
            **needed,
            "sources": {"a.py": "1", "b.py": "x" * 501, **{str(n): "" for n in range(1000)}},
        }
    )
    assert len(facts.sources) == 500
    assert "b.py" not in facts.sources


def test_samples_of_a_step_may_follow_a_knob() -> None:
    workload = make_workload("--batch=1,2", samples_per_step="2 * batch")
    assert settle(workload, {}).samples_per_step == 8
    assert settle(workload, {"batch": 2}).samples_per_step == 4
    for wrong, told in (
        ("2 * bath", "bath has no value"),
        ("batch - 4", "at least 1"),
        ("batch == 4", "at least 1"),
    ):
        with pytest.raises(ValidationError, match=told):
            make_workload("--batch=1,2", samples_per_step=wrong)
