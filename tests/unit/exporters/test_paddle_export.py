"""The Paddle prototxt and snippet: what is written, what is left alone, and why."""

import math
import re

import hypothesis.strategies as st
import pytest
from hypothesis import given

from advisor.exporters import export
from advisor.exporters.formats import FORMATS
from advisor.protocol.answers.advice import Provenance
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.paddle import VERSIONS, describe_in_paddle, explain_not_written
from advisor.protocol.knobs.strategy import UPDATE_RULES


def fields_of(content: str) -> dict[str, str]:
    """Read the prototxt's fields by path; blocks are one level deep."""
    fields, block = {}, ""
    for line in content.splitlines():
        text = line.split("#")[0].strip()
        if text.endswith("{"):
            block = text[:-1].strip() + "."
        elif text == "}":
            block = ""
        elif text:
            name, value = text.split(": ")
            fields[block + name] = value
    return fields


def test_only_timed_fields_and_their_companions_are_written(advise) -> None:
    file = export(*advise({"fuse_grad_size_in_MB": 64.0}), "paddle")
    assert fields_of(file.content) == {
        "fuse_all_reduce_ops": "true",
        "fuse_grad_size_in_MB": "64",
        "last_comm_group_size_MB": "1.0",
        "a_sync": "false",
        "fuse_grad_size_in_num": "20",
    }
    assert file.provenance["fuse_grad_size_in_MB"] is Provenance.TRANSLATED
    assert file.provenance["fuse_all_reduce_ops"] is Provenance.CARRIED
    assert file.left["cudnn_exhaustive_search"] == "Not timed: left at Paddle's default."


@pytest.mark.parametrize(("megabytes", "gradients"), [(1.0, 2), (4.0, 8), (64.0, 20)])
def test_static_programs_get_as_many_gradients_as_the_bytes_hold_on_average(
    megabytes, gradients, advise
) -> None:
    """The model has 20 gradients of 10 MB together."""
    file = export(*advise({"fuse_grad_size_in_MB": megabytes}), "paddle")
    assert fields_of(file.content)["fuse_grad_size_in_num"] == str(gradients)
    assert file.provenance["fuse_grad_size_in_num"] is Provenance.TRANSLATED
    assert "fuse_grad_size_in_num" not in fields_of(export(*advise({"num_threads": 2}), "paddle").content)


def test_nothing_claims_to_be_measured_in_paddle(advise) -> None:
    file = export(*advise({"nccl_comm_num": 4}), "paddle", "2.6.2")
    assert file.provenance["nccl_comm_num"] is Provenance.TRANSLATED


@pytest.mark.parametrize(("measured", "written"), [(0.25, "1"), (4.5, "5"), (1.0, "1"), (32.0, "32")])
def test_sizes_are_whole_numbers_rounded_up(measured, written, advise) -> None:
    file = export(*advise({"fuse_grad_size_in_MB": measured, "last_comm_group_size_MB": 0.0625}), "paddle")
    assert fields_of(file.content)["fuse_grad_size_in_MB"] == written
    rounded = [sentence for sentence in file.warnings if "rounded up" in sentence]
    assert bool(rounded) == (measured != float(written))
    assert ("Paddle takes whole MB" in file.content) == bool(rounded)


def test_asynchronous_parameter_servers_are_switched_off_always(advise) -> None:
    assert fields_of(export(*advise({}), "paddle").content) == {"a_sync": "false"}


def test_nested_fields_stand_in_a_block(advise) -> None:
    changes = {"localsgd": True, "localsgd_k_steps": 4, "localsgd_begin_step": 100}
    file = export(*advise(changes), "paddle", "2.6.2")
    assert (
        "localsgd_configs {\n  k_steps: 4  # timed in PyTorch; acts in static programs only\n"
        "  begin_step: 100  # timed in PyTorch; acts in static programs only\n}\n" in file.content
    )
    assert fields_of(file.content)["localsgd"] == "true"


def test_idle_fields_are_not_written(advise) -> None:
    file = export(*advise({"fuse_all_reduce_ops": False}), "paddle")
    assert fields_of(file.content) == {"fuse_all_reduce_ops": "false", "a_sync": "false"}
    assert file.left["fuse_grad_size_in_MB"] == "Fusion is off: every gradient travels alone."


def test_local_sgd_is_written_with_what_it_needs_to_act(advise) -> None:
    """Without the field Paddle reduces gradients in every step as well; alone the field would stop the reduction."""
    for name in ("localsgd", "adaptive_localsgd"):
        file = export(*advise({name: True}), "paddle", "2.6.2")
        assert fields_of(file.content)["without_graph_optimization"] == "false"
        assert file.provenance[name] is Provenance.TRANSLATED
        newer = export(*advise({name: True}), "paddle", "3.3.1")
        assert fields_of(newer.content) == {"a_sync": "false"}
        assert "fails to build a static program with it" in newer.unmapped[name]
    for changes in ({}, {"localsgd": False}, {"nccl_comm_num": 2}):
        assert "without_graph_optimization" not in export(*advise(changes), "paddle", "2.6.2").content


def test_local_sgd_under_an_optimizer_that_paddle_leaves_alone_is_said(advise) -> None:
    advice, job = advise({"localsgd": True})
    assert job.facts is not None
    adam = job.model_copy(update={"facts": job.facts.model_copy(update={"optimizers": ("AdamW",)})})
    assert "under AdamW it trains as if it were off" in export(advice, adam, "paddle", "2.6.2").warnings[-2]
    sgd = job.model_copy(update={"facts": job.facts.model_copy(update={"optimizers": ("SGD",)})})
    assert not any(
        "as if it were off" in sentence for sentence in export(advice, sgd, "paddle", "2.6.2").warnings
    )


@pytest.mark.parametrize("version", ["3.3.1", "2.6.2"])
def test_what_nobody_in_paddle_reads_is_not_written(version, advise) -> None:
    changes = {"use_hierarchical_allreduce": True, "sync_batch_norm": True, "fuse_all_optimizer_ops": True}
    file = export(*advise(changes, world_size=4), "paddle", version)
    assert fields_of(file.content) == {"a_sync": "false"}
    assert "nothing in it reads it" in file.unmapped["use_hierarchical_allreduce"]
    assert "convert_sync_batchnorm" in file.unmapped["sync_batch_norm"]
    assert "Carries 0 of 3 changes: nothing of what is advised is in this file." in file.content


def test_a_field_that_the_version_lacks_is_said_to_be_missing(advise) -> None:
    advice, job = advise({"num_threads": 4})
    newer, older = export(advice, job, "paddle", "3.3.1"), export(advice, job, "paddle", "2.6.2")
    assert newer.unmapped == {"num_threads": "The field exists in Paddle 2.6.2 only, not in 3.3.1."}
    assert "nothing in it reads it" in older.unmapped["num_threads"]
    assert "execution_strategy" not in older.content + newer.content


def test_the_default_target_is_the_newest(advise) -> None:
    advice, job = advise({"nccl_comm_num": 2})
    assert export(advice, job, "paddle") == export(advice, job, "paddle", "3.3.1")


@pytest.mark.parametrize("wire", ["fp16", "bf16"])
def test_a_field_that_would_stop_the_reduction_of_gradients_is_never_written(wire, advise) -> None:
    file = export(*advise({"fp16_allreduce": True, "fp16_allreduce_dtype": wire}), "paddle")
    assert "fp16_allreduce" not in fields_of(file.content)
    assert "would not reduce gradients at all" in file.unmapped["fp16_allreduce"]


def test_knobs_that_mean_something_else_in_paddle_say_so(advise) -> None:
    mixed = export(*advise({"amp": True}), "paddle")
    assert "amp" not in fields_of(mixed.content)
    assert "in bf16, and Paddle's amp computes in fp16" in mixed.unmapped["amp"]
    half = export(*advise({"amp": True, "amp_dtype": "fp16"}), "paddle")
    assert fields_of(half.content)["amp"] == "true"
    assert not half.unmapped
    compressed = export(*advise({"dgc": True, "dgc_rank": 4}), "paddle")
    assert fields_of(compressed.content)["dgc"] == "true"
    assert "sparsity" in compressed.unmapped["dgc_rank"]
    assert any("in translation" in sentence for sentence in compressed.warnings)
    adaptive = export(
        *advise({"adaptive_localsgd": True, "adaptive_localsgd_init_k_steps": 4}), "paddle", "2.6.2"
    )
    assert fields_of(adaptive.content)["adaptive_localsgd_configs.init_k_steps"] == "4"
    assert any("inside the square root" in sentence for sentence in adaptive.warnings)


def test_a_broken_rule_becomes_a_warning(advise) -> None:
    file = export(*advise({"nccl_comm_num": 2, "sync_nccl_allreduce": True}), "paddle")
    assert any("run one after another" in sentence for sentence in file.warnings)


def test_an_environment_knob_is_sent_to_the_environment(advise) -> None:
    file = export(*advise({"NCCL_SOCKET_NTHREADS": 4}), "paddle")
    assert "env export" in file.unmapped["NCCL_SOCKET_NTHREADS"]


def test_json_round_trips_do_not_change_types(advise) -> None:
    advice, job = advise({"last_comm_group_size_MB": 2.0})
    whole = advice.model_copy(update={"strategy": {**advice.strategy, "last_comm_group_size_MB": 2}})
    assert "last_comm_group_size_MB: 2.0" in export(whole, job, "paddle").content
    assert "last_comm_group_size_MB = 2.0" in export(whole, job, "paddle-python").content


def test_the_snippet_uses_the_attribute_that_paddle_reads(advise) -> None:
    content = export(*advise({"fuse_grad_size_in_TFLOPS": 50.0}), "paddle-python").content
    assert "strategy._fuse_grad_size_in_TFLOPS = 50.0" in content
    assert (
        "fuse_grad_size_in_TFLOPS: 50.0"
        in export(*advise({"fuse_grad_size_in_TFLOPS": 50.0}), "paddle").content
    )


def test_the_snippet_changes_a_block_without_replacing_it(advise) -> None:
    content = export(*advise({"fuse_bn_act_ops": True}), "paddle-python", "2.6.2").content
    body = re.findall(r"^    (\S.*?)(?:  #.*)?$", content, re.M)
    assert body[-5:] == [
        "build_strategy = strategy.build_strategy",
        "build_strategy.fuse_bn_act_ops = True",
        "strategy.build_strategy = build_strategy",
        "return strategy",
        "fleet.init(is_collective=True, strategy=make_strategy())",
    ]
    compile(content, "paddle_strategy.py", "exec")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["paddle", "paddle-python"])
def test_files_and_documents_say_the_same_of_every_knob(name, version, advise) -> None:
    """An advice that changes the knob, and what it needs, has its field exactly where the documents call it written."""
    for knob in CATALOGUE.values():
        other = not knob.default if knob.kind is bool else knob.high or next(iter(knob.choices[1:]), "eth0")
        needed = {on: True for on in UPDATE_RULES if knob.name.startswith(f"{on}_")}
        if knob.name.startswith("amp"):
            needed |= {"amp": True, "amp_dtype": "fp16"}
        if knob.name.startswith("amp_dtype"):
            other = "fp16"
        file = export(*advise({**needed, knob.name: other}), name, version)
        words = describe_in_paddle(knob.name)
        of_version = words.split(f"In {version}: ")[-1].split("In ")[0]
        says_written = of_version.startswith("written")
        assert (knob.name in file.provenance) is says_written, (knob.name, words, file.unmapped, file.left)
        assert says_written is not bool(explain_not_written(knob.name, version))
        if not says_written and knob.paddle_field and knob.name in file.unmapped:
            assert file.unmapped[knob.name] in words
            assert f"Not expressible here: {knob.name}: " in file.content


@pytest.mark.parametrize("version", VERSIONS)
def test_formats_claim_the_knobs_that_some_version_can_be_given(version, advise) -> None:
    written = {name for name in CATALOGUE if not explain_not_written(name, version)}
    assert written <= set(FORMATS["paddle"].knobs) == set(FORMATS["paddle-python"].knobs)


BUCKETS = st.fixed_dictionaries({}, optional={
    "fuse_all_reduce_ops": st.booleans(), "fuse_grad_size_in_MB": st.sampled_from([0.25, 1.0, 2.0, 4.0, 25.0, 64.0]),
    "last_comm_group_size_MB": st.sampled_from([0.0625, 1.0, 8.0]),
    "fuse_grad_size_in_TFLOPS": st.sampled_from([1.0, 2.0, 3.0, 5.0, 10.0, 20.0]),
})  # fmt: skip


@given(changes=BUCKETS, version=st.sampled_from(VERSIONS))
def test_no_file_fuses_more_than_the_strategy_that_was_timed(changes, version, advise) -> None:
    """The model has 10 layers with 20 gradients of 10 MB together; Paddle takes no less than whole MB."""
    file = export(*advise(changes), "paddle", version)
    fields, megabytes = fields_of(file.content), 10_000_000 / 2**20
    most = float(changes.get("fuse_grad_size_in_MB", 25.0))
    layers = float(changes.get("fuse_grad_size_in_TFLOPS", 10.0))
    if not changes.get("fuse_all_reduce_ops", True):
        assert not {"fuse_grad_size_in_MB", "fuse_grad_size_in_num"} & set(fields)
        assert fields["fuse_all_reduce_ops"] == "false"
        return
    most = min(most, layers / 10 * megabytes)
    if most < megabytes and changes.keys() & {"fuse_grad_size_in_MB", "fuse_grad_size_in_TFLOPS"}:
        assert int(fields["fuse_grad_size_in_num"]) <= max(1, round(20 * most / megabytes))
        assert int(fields["fuse_grad_size_in_MB"]) <= math.ceil(most)
    if "fuse_grad_size_in_TFLOPS" in changes and layers < 10:
        assert "was not seen to act: fuse_grad_size_in_TFLOPS" in file.content
        if layers / 10 * megabytes < float(changes.get("fuse_grad_size_in_MB", 25.0)):
            assert "Paddle acts on no limit of layers" in file.content
