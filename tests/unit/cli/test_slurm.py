"""Which words of `advisor slurm tune` are options of `advisor tune`, and what stands in the batch file."""

import os
from pathlib import Path

import pytest

from .conftest import Run

COMMAND = ["torchrun", "--nproc-per-node", "2", "train.py"]


@pytest.mark.parametrize(
    "options",
    [[], ["--new", "--minutes=3", "--seed", "2"]],
)
def test_options_of_tune_stand_before_its_command(
    options: list[str], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch")
    own = ["--nodes", "2", "--time", "10", "--sbatch", "--partition=a --mem=0", "--write", "x.sbatch"]
    done = run("slurm", "tune", *own, *options, "--", *COMMAND)
    assert done.exit_code == 0, done.stderr
    text = (tmp_path / "x.sbatch").read_text()
    minutes = [] if options else ["--minutes", "6"]
    assert (
        "tune --here --started-by \"slurm tune --nodes=2 --time=10 --sbatch '--partition=a --mem=0'\" \\\n    "
        + " ".join([*minutes, *options, "--", *COMMAND])
    ) in text
    assert "#SBATCH --partition=a --mem=0\n" in text
    assert os.access("x.sbatch", os.R_OK)


def test_job_that_goes_on_by_its_id_needs_no_launch_command(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    more = ["--state", "kept", "--continue", "3fa", "--minutes", "5"]
    done = run("slurm", "tune", "--nodes", "2", "--time", "10", "--write", "x.sbatch", *more)
    assert done.exit_code == 0, done.stderr
    assert (tmp_path / "x.sbatch").read_text().endswith(f"    {' '.join(more)}\n")
