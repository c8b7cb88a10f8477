"""Which options of which launchers name a place that they write to, however they are spelled."""

import pytest

from advisor.protocol.training.launch_command import Command
from advisor.protocol.training.launcher_paths import list_launcher_paths

OUT = "/anywhere"


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --log-dir /anywhere --redirects 3 train.py",
        "torchrun -r3 --log_dir=/anywhere train.py",
        "torchrun --nproc-per-node 2 --log-d /anywhere -m pkg.train",
        "python -u -m torch.distributed.run --tee 3 --log_dir /anywhere train.py",
        "python -m torch.distributed.launch --log_dir /anywhere train.py",
        "torchrun --no-python --log-dir /anywhere ./train",
        "accelerate launch --cpu --log_dir /anywhere train.py",
        "accelerate launch --num_processes=2 --offload_param_nvme_path=/anywhere -m pkg.train",
        "python -m accelerate.commands.launch --log-dir=/anywhere train.py",
        "env A=1 accelerate launch --log-di /anywhere train.py",
        "deepspeed --enable_each_rank_log /anywhere train.py",
        "deepspeed --enable_each=/anywhere train.py",
    ],
)
def test_place_that_a_launcher_writes_to_is_found(command):
    assert [path for _, path in list_launcher_paths(Command.read(command.split()))] == [OUT]


@pytest.mark.parametrize(
    "command",
    [
        "mpirun -np 2 -output-filename /anywhere python train.py",
        "mpirun --wdir /anywhere python train.py",
        "mpiexec -wd /anywhere python train.py",
        "/opt/bin/orterun --report-pid /anywhere python train.py",
    ],
)
def test_place_of_a_launcher_that_is_no_python_is_found(command):
    assert [path for _, path in list_launcher_paths(Command.read(command.split()))] == [OUT]


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nproc-per-node 2 train.py --log-dir /anywhere",
        "torchrun --role --log-dir train.py",
        "python train.py --log_dir /anywhere",
        "accelerate launch train.py --log_dir /anywhere",
        "bash run.sh --log-dir /anywhere",
    ],
)
def test_a_scripts_own_options_are_its_own(command):
    assert list_launcher_paths(Command.read(command.split())) == []
