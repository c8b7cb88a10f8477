"""Paddle's files for jobs with parameter servers: known by their own knobs' names, in the mode that was advised."""

import pytest

from advisor.answers.report import export_bundle
from advisor.exporters import ExportError, export
from advisor.exporters.formats import choose_format, list_suitable
from advisor.protocol.answers.advice import Provenance
from advisor.protocol.training.parameter_servers import Mode, ParameterServers
from advisor.protocol.training.workload import WorkloadKind

OWN = (
    "mode=sync,async,geo:convergence", "geo_k=10,2,100:convergence", "servers=1,2:exact",
    "placement=round_robin,hash_name,by_bytes:exact", "min_block=8192,0,4096,65536:exact",
)  # fmt: skip


@pytest.fixture
def serve(advise):
    """Give advised jobs with parameter servers."""

    def give(changes, own=OWN, command=("python", "ps.py"), **more):
        return advise(changes, kind=WorkloadKind.COMMAND, command=command, own=own, **more)

    return give


def code_of(content: str) -> str:
    """Return what stands behind the head."""
    return "".join(
        line.split("  #")[0] + "\n" for line in content.splitlines() if line and not line.startswith("#")
    )


@pytest.mark.parametrize(
    ("mode", "a_sync", "k_steps"), [("sync", False, 0), ("async", True, 0), ("geo", True, 100)]
)
def test_the_mode_is_written_with_the_k_that_paddle_knows_it_by(mode, a_sync, k_steps, serve) -> None:
    advice, job = serve({"mode": mode, "geo_k": 100})
    assert code_of(export(advice, job, "paddle").content) == (
        f"a_sync: {str(a_sync).lower()}\na_sync_configs {{\n  k_steps: {k_steps}\n}}\n"
    )
    lines = code_of(export(advice, job, "paddle-python").content).splitlines()
    assert lines[3:] == [
        f"    strategy.a_sync = {a_sync}", f'    strategy.a_sync_configs = {{"k_steps": {k_steps}}}',
        "    return strategy", "def init_fleet():",
        "    fleet.init(is_collective=False, strategy=make_strategy())",
    ]  # fmt: skip


def test_what_was_timed_in_another_program_is_told_from_what_was_timed_in_paddle(serve) -> None:
    advice, job = serve({"mode": "geo"})
    file = export(advice, job, "paddle")
    assert file.target == "2.6.2"
    assert file.provenance == {"mode": Provenance.TRANSLATED, "geo_k": Provenance.CARRIED}
    in_paddle = advice.model_copy(update={"software": {"paddle": "2.6.2"}})
    assert export(in_paddle, job, "paddle").provenance["mode"] is Provenance.MEASURED


def test_commands_have_paddles_files_only_where_their_knobs_tell_the_mode(serve, advise) -> None:
    def list_paddle(own):
        _, job = serve({}, own=own)
        return [info.name for info in list_suitable(job) if info.name.startswith("paddle")]

    every = ["paddle", "paddle-python", "paddle-servers", "paddle-transpiler"]
    assert list_paddle(OWN) == list_paddle(("mode=sync,async",)) == every
    assert list_paddle(("mode=geo,sync", "geo_k=4,8")) == every
    assert not list_paddle(("batch=1,2",))
    assert not list_paddle(("mode=sync,geo",)), "no k"
    assert not list_paddle(("mode=sync,fast",)), "another mode"
    with pytest.raises(ExportError, match="cannot apply"):
        export(*serve({}, own=("servers=1,2",)), "paddle")
    _, collective = advise({})
    assert "paddle-servers" not in [info.name for info in list_suitable(collective)]


def test_a_programs_facts_tell_what_its_knobs_do_not(serve) -> None:
    advice, job = serve({"servers": 2}, own=("servers=1,2:exact",))
    told = ParameterServers(mode=Mode.GEO, geo_k=4, trainer_nodes=(0, 0, 0), server_nodes=(0,))
    job = job.model_copy(update={"facts": job.facts.model_copy(update={"parameter_servers": told})})
    file = export(advice, job, "paddle")
    assert code_of(file.content) == "a_sync: true\na_sync_configs {\n  k_steps: 4\n}\n"
    assert set(file.provenance.values()) == {Provenance.CARRIED}
    assert "\nSERVERS, TRAINERS = 2, 3\n" in export(advice, job, "paddle-servers").content


def test_what_the_command_says_beside_its_knobs_counts(serve) -> None:
    command = ("python", "l.py", "--servers", "3", "--trainers=5", "--", "python", "ps.py", "--mode", "geo")
    advice, job = serve({"geo_k": 100}, own=("geo_k=10,100",), command=command)
    file = export(advice, job, "paddle")
    assert code_of(file.content) == "a_sync: true\na_sync_configs {\n  k_steps: 100\n}\n"
    assert file.provenance == {"mode": Provenance.CARRIED, "geo_k": Provenance.TRANSLATED}
    assert "\nSERVERS, TRAINERS = 3, 5\n" in export(advice, job, "paddle-servers").content


def test_words_where_numbers_are_meant_are_left_out(serve) -> None:
    own = (*OWN[:2], "servers=one,two", "min_block=none,small")
    command = ("python", "l.py", "--trainers", "10.0.0.1:6170,10.0.0.2:6170")
    advice, job = serve({"servers": "two", "min_block": "small"}, own=own, command=command)
    file = export(advice, job, "paddle-servers")
    assert "\nSERVERS, TRAINERS = 1, 2\n" in file.content
    assert "servers" in file.unmapped
    assert "min_block" in export(advice, job, "paddle-transpiler").unmapped


def test_the_launcher_starts_what_was_advised(serve) -> None:
    file = export(*serve({"mode": "geo", "servers": 2}, world_size=4), "paddle-servers")
    assert "\nSERVERS, TRAINERS = 2, 4\n" in file.content
    assert "\nVARIABLES: dict[str, str] = {}\n" in file.content
    assert file.provenance == {"servers": Provenance.TRANSLATED}
    assert "fleetrun --servers" in file.content
    compile(file.content, file.filename, "exec")


@pytest.mark.parametrize(
    ("mode", "variables"), [("geo", "{'FLAGS_communicator_send_queue_size': '20'}"), ("async", "{}")]
)
def test_geos_communicator_gets_its_variables_and_no_field_that_nothing_reads(mode, variables, serve) -> None:
    advice, job = serve({"mode": mode, "send_queue_size": 20}, (*OWN, "send_queue_size=10,20"))
    assert f"\nVARIABLES: dict[str, str] = {variables}\n" in export(advice, job, "paddle-servers").content
    strategy = export(advice, job, "paddle-python")
    assert "send_queue_size" not in code_of(strategy.content)
    assert "nothing reads it" in strategy.unmapped["send_queue_size"]


def test_an_architecture_without_servers_gets_collective_files_and_no_launcher(serve) -> None:
    own = (*OWN, "architecture=servers,collective,hybrid")
    advice, job = serve({"architecture": "collective"}, own)
    assert code_of(export(advice, job, "paddle").content) == "a_sync: false\n"
    assert "is_collective=True" in export(advice, job, "paddle-python").content
    with pytest.raises(ExportError, match="no parameter servers"):
        export(advice, job, "paddle-servers")
    assert not [name for name in export_bundle(advice, job) if "paddle" in name or "prototxt" in name]


def test_a_bundle_has_the_launcher_beside_the_strategy_and_no_transpiler(serve) -> None:
    advice, job = serve({"mode": "geo", "servers": 2})
    names = set(export_bundle(advice, job))
    assert {"run.sh", "strategy.prototxt", "paddle_strategy.py", "paddle_servers.py"} <= names
    assert "transpiler_config.py" not in names
    assert choose_format(job).name == "command"


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({"servers": 2}, ["config.sync_mode = True"]),
        ({"mode": "async"}, ["config.sync_mode = False", "config.runtime_split_send_recv = True"]),
        (
            {"mode": "geo", "geo_k": 100},
            ["config.sync_mode = False", "config.geo_sgd_mode = True", "config.geo_sgd_need_push_nums = 100"],
        ),
        ({"min_block": 0}, ["config.sync_mode = True", "config.slice_var_up = False"]),
        (
            {"min_block": 65536, "placement": "hash_name"},
            ["config.sync_mode = True", "config.slice_var_up = True", "config.min_block_size = 65536",
             "config.split_method = HashName"],
        ),
        ({"min_block": 4096, "placement": "by_bytes"}, ["config.sync_mode = True"]),
    ],
)  # fmt: skip
def test_the_transpiler_gets_what_was_timed(changes, lines, serve) -> None:
    file = export(*serve(changes), "paddle-transpiler")
    told = [line.strip() for line in code_of(file.content).splitlines() if line.startswith("    config.")]
    assert told == ['config.mode = "pserver"', *lines]
    assert "memory_optimize(program, skip_grads=True)" in file.content
    assert ("min_block" in file.unmapped) is (changes.get("min_block") == 4096)
    assert ("placement" in file.unmapped) is (changes.get("placement") == "by_bytes")


def test_collective_jobs_get_a_transpiler_for_nccl(advise) -> None:
    changes = {"use_hierarchical_allreduce": True, "hierarchical_allreduce_inter_nranks": 4}
    file = export(*advise(changes, world_size=8, nodes=2), "paddle-transpiler")
    assert code_of(file.content).splitlines()[3:-1] == [
        '    config.mode = "nccl2"', "    config.use_hierarchical_allreduce = True",
        "    config.hierarchical_allreduce_inter_nranks = 4",
    ]  # fmt: skip
    assert "memory_optimize" not in file.content
    single = export(*advise({"nccl_comm_num": 2}), "paddle-transpiler")
    assert "    config.nccl_comm_num = 2" in single.content
