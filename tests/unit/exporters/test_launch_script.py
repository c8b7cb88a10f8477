"""run.sh and strategy.env, executed by the real shell: the words that arrive are the words of the job."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from advisor.answers.report import export_bundle
from advisor.exporters import export
from advisor.exporters.own_lines import list_own_lines
from advisor.protocol.nodes.cluster import Cluster, Node

HOSTILE = ("it's", "$(touch pwned)", "`id`", "a b", 'say "hi"', "line\nbreak", "é", "*", "--x=;reboot", "")


def execute(script: str, folder: Path, *arguments: str, environment: Mapping[str, str] | None = None):
    """Run `script` with a Python that prints its words and its environment instead of running anything."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    fake = tools / "python3"
    fake.write_text('#!/bin/bash\nprintf "%s\\0" "$@" > words\nenv -0 > variables\npwd > place\n')
    (folder / "fleet_advisor_runtime.pyz").touch()
    fake.chmod(0o755)
    (folder / "run.sh").write_text(script)
    return subprocess.run(
        ["bash", str(folder / "run.sh"), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={"PATH": f"{tools}:{os.environ['PATH']}", **(environment or {})},
    )


def read_words(folder: Path) -> list[str]:
    return (folder / "words").read_text().split("\0")[:-1]


def test_the_jobs_own_command_runs_under_the_strategy_file_beside_it(advise, tmp_path: Path) -> None:
    script = export(*advise({"fuse_grad_size_in_MB": 50.0}), "torchrun").content
    done = execute(script, tmp_path, "--seed", "two words")
    assert done.returncode == 0, done.stderr
    assert read_words(tmp_path) == [
        str(tmp_path / "fleet_advisor_runtime.pyz"), "--strategy", str(tmp_path / "strategy.json"), "--",
        "torchrun", "--nproc-per-node", "2", "train.py", "--epochs", "3", "--seed", "two words",
    ]  # fmt: skip


def test_a_script_without_the_runtime_beside_it_says_what_to_do(advise, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(export(*advise({"fuse_grad_size_in_MB": 50.0}), "torchrun").content)
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 127
    assert "advisor export JOB --format runtime writes it" in done.stderr


def test_hostile_words_arrive_as_they_are(advise, tmp_path: Path) -> None:
    command = ("torchrun", "train me.py", *HOSTILE)
    script = export(*advise({"nccl_comm_num": 2}, command=command, name=HOSTILE[5]), "torchrun").content
    done = execute(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert read_words(tmp_path)[4:] == ["torchrun", "train me.py", *HOSTILE]
    assert not (tmp_path / "pwned").exists()


def test_the_script_runs_in_the_jobs_folder(advise, tmp_path: Path) -> None:
    place = tmp_path / "it's $(here)"
    place.mkdir()
    script = export(*advise({}, working_dir=str(place)), "torchrun").content
    assert execute(script, tmp_path).returncode == 0
    assert (place / "place").read_text() == f"{place}\n"


def test_several_nodes_ask_for_their_rank_and_address(advise, tmp_path: Path) -> None:
    script = export(*advise({}, nodes=2, world_size=4), "torchrun").content
    refused = execute(script, tmp_path)
    assert refused.returncode != 0
    assert "Set NODE_RANK" in refused.stderr
    again = tmp_path / "again"
    again.mkdir()
    done = execute(script, again, environment={"NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1"})
    assert done.returncode == 0, done.stderr
    assert read_words(again)[7:15] == [
        "--nnodes", "2", "--node-rank", "1", "--master-addr", "10.0.0.1", "--master-port", "29500",
    ]  # fmt: skip


def test_nodes_that_were_agents_of_one_machine_all_start_there(advise, tmp_path: Path) -> None:
    advice, job = advise({}, nodes=2, world_size=2)
    node = Node(hostname="here", cpu_count=2, memory_bytes=2**30)
    script = export(
        advice, job.model_copy(update={"cluster": Cluster(nodes=(node, node))}), "torchrun"
    ).content
    fake = tmp_path / "fake"
    fake.write_text('#!/bin/sh\necho "$MASTER_ADDR:$MASTER_PORT" > "address$NODE_RANK"; exit "$NODE_RANK"\n')
    fake.chmod(0o755)
    # It is typed where the environment is, and the script goes to the training's folder.
    done = execute(script, tmp_path, environment={"PYTHON": "./fake"})
    assert done.returncode == 1, done.stderr
    addresses = {(tmp_path / f"address{rank}").read_text() for rank in (0, 1)}
    assert len(addresses) == 1
    assert addresses.pop().startswith("127.0.0.1:2")
    named = execute(script, tmp_path, environment={"NODE_RANK": "0"})
    assert "Set MASTER_ADDR" in named.stderr


def test_any_launcher_carries_every_change(advise) -> None:
    changes = {
        "fuse_grad_size_in_MB": 50.0,
        "num_threads": 4,
        "loader_num_workers": 4,
        "gradient_merge": True,
    }
    file = export(*advise(changes, command=("./train.sh", "a b")), "torchrun")
    assert "-- ./train.sh 'a b' \"$@\"" in file.content
    assert set(file.provenance) == set(changes)
    assert not file.unmapped


def test_a_file_that_carries_less_claims_less(advise) -> None:
    file = export(
        *advise({"fuse_grad_size_in_MB": 50.0, "loader_num_workers": 4}, backend="nccl"), "lightning"
    )
    assert "# Carries 1 of 2 changes: the gain above was measured with all of them together" in file.content
    assert "Carries" not in export(*advise({"fuse_grad_size_in_MB": 50.0}), "lightning").content


def test_the_jobs_own_variables_are_named_but_not_copied(advise) -> None:
    file = export(*advise({}, environment={"WANDB_API_KEY": "secret"}), "torchrun")
    assert "WANDB_API_KEY" in file.content
    assert "secret" not in file.content


def test_an_environment_file_is_read_by_the_shell(advise, tmp_path: Path) -> None:
    changes = {"num_threads": 4, "NCCL_IB_DISABLE": True, "NCCL_SOCKET_IFNAME": "eth0; touch pwned"}
    file = export(*advise(changes, name="a\nexport EVIL=1"), "env")
    (tmp_path / "strategy.env").write_text(file.content)
    done = subprocess.run(
        ["bash", "-c", "set -eua; . ./strategy.env; set +a; env -0"], cwd=tmp_path, capture_output=True, text=True,
        timeout=30, check=True, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    variables = set(done.stdout.split("\0"))
    assert {"OMP_NUM_THREADS=4", "NCCL_IB_DISABLE=1", "NCCL_SOCKET_IFNAME=eth0; touch pwned"} <= variables
    assert not any(line.startswith("EVIL") for line in variables)
    assert not (tmp_path / "pwned").exists()


def test_what_no_variable_can_carry_is_sent_elsewhere(advise) -> None:
    file = export(*advise({"fuse_grad_size_in_MB": 50.0}), "env")
    assert not file.provenance
    assert "use the torchrun or paddle export" in file.unmapped["fuse_grad_size_in_MB"]
    assert all(line.startswith("#") for line in file.content.splitlines())


def test_flags_of_paddle_are_said_to_be_paddles(advise) -> None:
    file = export(*advise({"FLAGS_fraction_of_gpu_memory_to_use": 0.9}), "env")
    assert "FLAGS_fraction_of_gpu_memory_to_use=0.9" in file.content


def test_an_inherited_variable_that_the_advice_takes_away_is_gone_for_the_command(
    advise, tmp_path: Path
) -> None:
    own = {
        "name": "inherited_NCCL_IB_DISABLE", "at": "$NCCL_IB_DISABLE", "values": ("inherited", "unset"),
        "baseline": "inherited",
    }  # fmt: skip
    advice, job = advise({"inherited_NCCL_IB_DISABLE": "unset"}, own=[own], command=("env", "-0"))
    for name, content in export_bundle(advice, job).items():
        (tmp_path / name).write_bytes(content)
    started = {"PATH": os.environ["PATH"], "PYTHON": sys.executable, "NCCL_IB_DISABLE": "1", "KEPT": "1"}
    done = subprocess.run(
        ["bash", "run.sh"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True, env=started
    )
    names = {line.partition("=")[0] for line in done.stdout.split("\0")}
    assert "KEPT" in names
    assert "NCCL_IB_DISABLE" not in names
    assert list_own_lines(advice, job)[0].text == "unset NCCL_IB_DISABLE"
    assert "unset NCCL_IB_DISABLE" in export(advice, job, "env").unmapped["inherited_NCCL_IB_DISABLE"]
