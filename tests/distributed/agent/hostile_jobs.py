"""Generates jobs that name what no agent should open: the same job for the same seed."""

import os
import random
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

from advisor.protocol.training.workload import Injection, Workload

MARKER = "canary-of-another-user"
"""What stands in files that neither the agent's reports nor its logs may ever show."""
_ANOTHER_USER = 12345

READER = """
import os, stat, sys

def look(path):
    try:
        facts = os.stat(path)
        if stat.S_ISDIR(facts.st_mode):
            print(path, sorted(os.listdir(path))[:50])
            for name in ("secret", "closed/secret"):
                look(os.path.join(path, name))
        elif stat.S_ISREG(facts.st_mode) and facts.st_size < 10**5:
            print(path, open(path, errors="replace").read())
        with open(path if facts.st_mode & stat.S_IFDIR == 0 else os.path.join(path, "mine"), "w") as file:
            file.write("changed")
    except OSError as error:
        print(path, error.strerror)

for word in [*sys.argv[1:], os.getcwd()]:
    look(word.rpartition("=")[2])
"""
"""Prints and overwrites what its arguments and its directory hold, as far as it may."""


@dataclass(frozen=True)
class Traps:
    """A root that the operator allows, and what must not be opened, inside of it and elsewhere."""

    root: Path
    secret: Path
    """A directory of another user's (or of root's), which nobody else may enter."""
    names: tuple[str, ...]


def lay_traps(folder: Path) -> Traps:
    """Make them in `folder`."""
    root, elsewhere = folder / "root", folder / "elsewhere"
    secret = elsewhere / "closed"
    for place in (root, root / "sub", elsewhere, secret):
        place.mkdir(parents=True)
        place.chmod(0o777)
    (secret / "secret").write_text(MARKER)
    (root / "train.py").write_text(READER)
    (root / "sub" / "train.py").write_text(READER)
    made = [_make_in(place) for place in (root, elsewhere)]
    if os.geteuid() == 0:
        for path in (secret, secret / "secret"):
            os.chown(path, _ANOTHER_USER, _ANOTHER_USER)
    secret.chmod(0o700)
    (root / "way_out").symlink_to(secret)
    fixed = (
        "/dev/zero", "/dev/full", "/dev/tty", "/dev/stdin", "/dev/fd/0", "/proc/kmsg", "/proc/self/mem", "/proc/1/root",
        "/proc/self/environ", "/proc/self/fd", "/", "/etc/shadow", ".", "..", "", "~/x", "x" * 255, "x" * 5000,
        "a/" * 2000, "new\nline", "\x1b[31mred", "näme", "-", "--", "-c", "$(id)", "`id`", "${master_addr}",
        "way_out/secret", "../elsewhere/closed", str(secret), str(secret / "secret"), str(secret / "torchrun"),
        "/proc/self/cwd/fifo",
    )  # fmt: skip
    return Traps(root, secret, (*fixed, *(name for names in made for name in names)))


def _make_in(place: Path) -> list[str]:
    os.mkfifo(place / "fifo")
    (place / "pipes").mkdir()
    for name in ("torchrun", "python", "python3"):
        os.mkfifo(place / "pipes" / name)
        (place / "pipes" / name).chmod(0o777)  # an executable one needs no root
    (place / "folders" / "torchrun").mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir="/tmp") as short, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{short}/s")
        os.link(f"{short}/s", place / "socket.sh")
    for depth in range(60):
        (place / f"chain{depth}").symlink_to(f"chain{depth + 1}")
    (place / "loop").symlink_to("loop")
    (place / "endless").symlink_to("/dev/zero")
    with open(place / "huge.sh", "wb") as file:
        file.truncate(2**40)
    (place / "huge.sh").chmod(0o755)
    (place / "unreadable").write_text(MARKER if os.geteuid() == 0 else "")
    (place / "unreadable").chmod(0)
    (place / "to_pipe").write_text(f"#!{place}/pipes/python\n")
    (place / "to_pipe").chmod(0o755)
    names = ("fifo", "pipes", "pipes/torchrun", "pipes/python", "pipes/python3", "folders", "folders/torchrun",
        "socket.sh", "chain0", "chain30", "loop", "endless", "huge.sh", "unreadable", "to_pipe")  # fmt: skip
    return [str(place / name) for name in names]


def make_job(seed: int, traps: Traps, python: str) -> Workload:
    """Return the workload of a seed; `python` is one that the scripts' user may start."""
    chance = random.Random(seed)

    def trap() -> str:
        name = chance.choice(traps.names)
        return name if name.startswith("/") or chance.random() < 0.7 else f"{traps.root}/{name}"

    def some(at_most: int) -> list[str]:
        return [trap() for _ in range(chance.randrange(at_most + 1))]

    launcher = chance.choice(
        [[python], [python], [python, "-u"], ["torchrun"], ["torchrun", "--nproc-per-node", "2"],
         ["torchrun", "--redirects", "3", "--log-dir", trap()], ["torchrun", f"--log_d={trap()}"],
         ["accelerate", "launch", "--log_dir", trap()], ["deepspeed", "--enable_each_rank_log", trap()],
         ["mpirun", "--output-filename", trap()], ["bash"], ["bash", "-c", "true"], [python, "-c", "pass"],
         [python, "-m"], [python, "-X", f"pycache_prefix={trap()}"], [trap() or "x"],
         [f"{traps.root}/pipes/torchrun"], [f"{traps.root}/folders/torchrun"], [f"{traps.root}/to_pipe"]]
    )  # fmt: skip
    script = chance.choice(["train.py", "train.py", "train.py", f"{traps.root}/train.py", trap()])
    arguments = [chance.choice(["", "--out=", "--data "]).strip() + name for name in some(3)]
    variables = {chance.choice(["PATH", "LD_PRELOAD", "PYTHONPATH", "HOME"]): trap()}
    working_dir = chance.choice([*[str(traps.root)] * 3, f"{traps.root}/sub", trap() or "/"])
    kind = chance.choice(["pytorch", "pytorch", "command", "paddle"])
    if chance.random() < 0.25:  # all is as the operator wants it but for the arguments
        return Workload(
            command=(*chance.choice([[python], ["torchrun"]]), "train.py", *arguments, *some(3)),
            working_dir=str(traps.root),
            injection=Injection.LAUNCHER,
        )
    return Workload(
        kind=kind,
        command=(*launcher, script, *arguments),
        working_dir=working_dir,
        protect=tuple(some(2)) if chance.random() < 0.3 else (),
        environment=variables if chance.random() < 0.15 else {},
        knobs={"num_threads": 1} if kind == "command" else {},
        injection=chance.choice(list(Injection)) if kind == "pytorch" else Injection.AUTO,
    )
