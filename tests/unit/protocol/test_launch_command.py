"""Launch commands, taken apart as their launcher would."""

import shlex

import pytest

from advisor.protocol.training import launch_command
from advisor.protocol.training.launch_command import (
    Command,
    ForeignCommand,
    PaddleCommand,
    UnlaunchableCommand,
    choose_injection,
    count_ranks,
    parse_command,
    refuse_paddle,
    trains_with_paddle,
)
from advisor.protocol.training.workload import Injection


@pytest.mark.parametrize(
    ("words", "python_options", "launcher_options", "script", "arguments"),
    [
        ("torchrun train.py", "", "", "train.py", ""),
        (
            "torchrun --nproc-per-node 2 train.py --epochs 3",
            "",
            "--nproc-per-node 2",
            "train.py",
            "--epochs 3",
        ),
        ("torchrun --nproc_per_node=gpu train.py -m x", "", "--nproc_per_node=gpu", "train.py", "-m x"),
        ("torchrun --nproc-per 2 train.py", "", "--nproc-per 2", "train.py", ""),
        ("/opt/venv/bin/torchrun -r 3 -t3 train.py", "", "-r 3 -t3", "train.py", ""),
        ("torchrun --standalone --nnodes 1:4 --rdzv-backend=c10d train.py", "", "", "train.py", ""),
        ("torchrun --rdzv_endpoint h:1 --rdzv-id 7 --rdzv-conf a=b train.py", "", "", "train.py", ""),
        ("torchrun --nnodes=2 --node_rank 1 --master-addr h --master-port 1 t.py", "", "", "t.py", ""),
        ("torchrun --max-restarts 3 --local-addr h t.py", "", "", "t.py", ""),
        (
            "torchrun --nproc-per-node 2 -m pkg.train --lr 1",
            "",
            "--nproc-per-node 2",
            "-m pkg.train",
            "--lr 1",
        ),
        ("torchrun --run-path --virtual-local-rank t.py", "", "--virtual-local-rank", "t.py", ""),
        ("torchrun --numa-binding node -- t.py -- x", "", "--numa-binding node", "t.py", "-- x"),
        ("python -m torch.distributed.run --nproc-per-node 2 t.py", "", "--nproc-per-node 2", "t.py", ""),
        ("python3.11 -u -X dev -m torch.distributed.run t.py", "-u -X dev", "", "t.py", ""),
        ("python3 -um torch.distributed.run t.py --a", "-u", "", "t.py", "--a"),
        ("python train.py --a b", "", "", "train.py", "--a b"),
        ("python -W ignore -Xdev -Bu train.py", "-W ignore -Xdev -Bu", "", "train.py", ""),
        ("python -u -m pkg.train --a", "-u", "", "-m pkg.train", "--a"),
        ("python -mpkg.train --a", "", "", "-m pkg.train", "--a"),
    ],
)
def test_command_is_taken_apart(words, python_options, launcher_options, script, arguments):
    command = parse_command(words.split())
    assert " ".join(command.python_options) == python_options
    assert " ".join(command.launcher_options) == launcher_options
    assert " ".join(command.script) == script
    assert " ".join(command.arguments) == arguments


@pytest.mark.parametrize(
    ("words", "is_torchrun"),
    [("torchrun t.py", True), ("python -m torch.distributed.run t.py", True), ("python t.py", False)],
)
def test_launcher_is_recognised(words, is_torchrun):
    assert parse_command(words.split()).is_torchrun is is_torchrun


def test_options_that_the_gang_decides_are_named():
    command = parse_command(["torchrun", "--standalone", "--nnodes", "4", "--nproc-per-node", "2", "t.py"])
    assert command.replaced == ("--standalone", "--nnodes 4")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "/usr/bin/mpirun -n 2 python t.py",
            "mpirun starts processes that no agent can reach.*one agent per node",
        ),
        ("docker run image torchrun t.py", "agent inside the container"),
        ("./train.py", "put python or torchrun in front"),
        ("python -c pass", "write it to a file"),
        ("python", "script that trains is missing"),
        ("python -m", "script that trains is missing"),
        ("python -Z t.py", "-Z is not an option of python"),
        ("torchrun --nproc-per-node 2", "script that trains is missing"),
        ("torchrun --nproc-per-node", "ends after --nproc-per-node"),
        ("torchrun --nprox 2 t.py", "--nprox is not an option of torchrun"),
        ("torchrun --rdzv c10d t.py", "could mean --rdzv-backend, --rdzv-endpoint"),
    ],
)
def test_command_is_refused_with_a_remedy(words, sentence):
    with pytest.raises(UnlaunchableCommand, match=sentence):
        parse_command(words.split())


FOREIGN = (
    "accelerate launch train.py", "deepspeed train.py", "bash run.sh", "/bin/sh -c 'torchrun t.py'", "./train",
    "python -m torch.distributed.launch t.py", "python -m accelerate.commands.launch t.py",
    "torchrun --no-python ./run.sh",
)  # fmt: skip


@pytest.mark.parametrize("command", FOREIGN)
def test_runtime_goes_through_the_environment_where_the_command_starts_its_ranks_itself(command):
    words = shlex.split(command)
    assert choose_injection(Injection.AUTO, Command.read(words)) is Injection.ENVIRONMENT
    assert choose_injection(Injection.NONE, Command.read(words)) is Injection.NONE
    with pytest.raises(ForeignCommand, match=r"starts the training processes itself.*injection"):
        choose_injection(Injection.LAUNCHER, Command.read(words))


@pytest.mark.parametrize("command", ["torchrun t.py", "python -m torch.distributed.run t.py"])
def test_runtime_stands_before_a_script_that_can_be_found(command):
    for wanted in Injection:
        chosen = choose_injection(wanted, Command.read(command.split()))
        assert chosen is (Injection.LAUNCHER if wanted is Injection.AUTO else wanted)


def test_a_script_that_python_starts_is_reached_through_the_environment_because_it_starts_its_ranks():
    words = ["python", "train.py"]
    assert choose_injection(Injection.AUTO, Command.read(words)) is Injection.ENVIRONMENT
    assert choose_injection(Injection.LAUNCHER, Command.read(words)) is Injection.LAUNCHER


@pytest.mark.parametrize("wanted", list(Injection))
@pytest.mark.parametrize("command", ["torchrun --nprox 2 t.py", "srun python t.py", "./train.py", "torchrun"])
def test_misspelt_command_is_refused_however_the_runtime_gets_in(wanted, command):
    with pytest.raises(UnlaunchableCommand):
        choose_injection(wanted, Command.read(command.split()))


def test_option_table_is_torchs_own():
    """A torch whose torchrun learnt a new option needs a look at the table."""
    from torch.distributed.run import get_args_parser

    flags, values = set(), set()
    for action in get_args_parser()._actions:
        names = {name[2:].replace("_", "-") for name in action.option_strings if name.startswith("--")}
        (flags if action.nargs == 0 else values).update(names)
    assert flags == set(launch_command._TORCHRUN_FLAGS)
    assert values == set(launch_command._TORCHRUN_VALUES)


@pytest.mark.parametrize(
    ("command", "launcher", "script"),
    [
        ("torchrun --nproc-per-node 2 train.py --lr 1", "torchrun --nproc-per-node 2", "train.py --lr 1"),
        (
            "torchrun --nproc_per_node=2 --standalone train.py",
            "torchrun --nproc_per_node=2 --standalone",
            "train.py",
        ),
        ("/opt/bin/torchrun -r 3 -t3 train.py -m x", "/opt/bin/torchrun -r 3 -t3", "train.py -m x"),
        ("torchrun --nproc-per-node 2 -m pkg.train a", "torchrun --nproc-per-node 2", "-m pkg.train a"),
        ("torchrun --module --rdzv_id 7 pkg.train", "torchrun --rdzv_id 7", "-m pkg.train"),
        ("torchrun --virtual_local_rank train.py", "torchrun --virtual_local_rank", "train.py"),
        (
            "python -m torch.distributed.run --nnodes 2 t.py",
            "python -m torch.distributed.run --nnodes 2",
            "t.py",
        ),
        ("python3.12 -u -X dev train.py --x", "python3.12 -u -X dev", "train.py --x"),
        ("python -m pkg.train --x", "python", "-m pkg.train --x"),
    ],
)
def test_the_command_is_split_before_the_script(command: str, launcher: str, script: str) -> None:
    found = parse_command(shlex.split(command))
    assert (shlex.join(found.typed_launcher), shlex.join((*found.script, *found.arguments))) == (
        launcher,
        script,
    )


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("torchrun --nnodes=2 t.py", True),
        ("torchrun --master_addr a t.py", True),
        ("torchrun --standalone t.py", True),
        ("torchrun --nproc-per-node 2 t.py --nnodes 3", False),
    ],
)
def test_the_rendezvous_is_read_from_the_launchers_own_options(command: str, names: bool) -> None:
    found = parse_command(shlex.split(command))
    assert found.names_rendezvous is names


@pytest.mark.parametrize(
    "words",
    [
        "fleetrun --gpus 0,1 train.py",
        "/opt/conda/bin/fleetrun train.py",
        "python -m paddle.distributed.launch --nproc_per_node 2 train.py",
        "python3 -u -m paddle.distributed.launch train.py",
        "python -mpaddle.distributed.launch train.py",
        "env OMP_NUM_THREADS=1 python -m paddle.distributed.launch train.py",
        "nice -n 5 fleetrun train.py",
    ],
)
def test_paddles_launchers_are_told_by_name_with_what_to_type(words: str) -> None:
    with pytest.raises(PaddleCommand, match="give --kind paddle") as refused:
        refuse_paddle(words.split())
    assert "trains with PaddlePaddle" in str(refused.value)


@pytest.mark.parametrize(
    ("words", "one"),
    [
        ("torchrun --nproc-per-node 2 --tee 3 t.py --epochs 2", "torchrun --tee 3 --nproc-per-node=1 t.py --epochs 2"),
        ("python -m torch.distributed.run --nproc_per_node=gpu -m mine",
         "python -m torch.distributed.run --nproc-per-node=1 -m mine"),
    ],
)  # fmt: skip
def test_one_rank_of_a_command_is_the_same_but_for_their_number(words: str, one: str) -> None:
    assert parse_command(words.split()).with_one_rank() == tuple(one.split())


def test_an_argument_of_the_script_names_no_launcher() -> None:
    refuse_paddle(["torchrun", "--nproc-per-node", "2", "train.py", "--backend", "fleetrun"])


@pytest.mark.parametrize(
    ("source", "is_paddle"),
    [
        ("import paddle\n", True),
        ("import os\nfrom paddle.distributed import fleet\n", True),
        ("def main():\n    import paddle as pd\n", True),
        ("#!/bin/sh\nexec fleetrun --gpus 0,1 train.py\n", True),
        ("#!/bin/sh\npython -m paddle.distributed.launch train.py\n", True),
        ("import torch\nimport paddle\n", False),
        ("from transformers import Trainer\ntry:\n    import paddle\nexcept ImportError:\n    pass\n", False),
        ("# import paddle\nimport paddleocr\n", False),
        ("print('paddle')\n", False),
        ("", False),
    ],
)
def test_a_script_that_trains_with_paddle_is_told_by_what_it_imports(source: str, is_paddle: bool) -> None:
    assert trains_with_paddle(source) is is_paddle


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        ("torchrun --nproc-per-node 4 t.py --nproc-per-node 9", 4),
        ("python -m torch.distributed.run --tee 3 --nproc_per_node=2 t.py", 2),
        ("torchrun --nproc-per-node gpu t.py", None),
        ("torchrun --standalone t.py", None),
        ("python t.py", None),
        ("mpirun -np 2 t.py", None),
    ],
)
def test_the_ranks_that_torchrun_is_told_to_start_are_counted(command: str, ranks: int | None) -> None:
    assert count_ranks(command.split()) == ranks
