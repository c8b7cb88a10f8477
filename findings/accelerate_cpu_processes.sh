#!/usr/bin/env bash
# accelerate 1.15.0 with torch 2.13.0, seen on 2026-11-28.
# `accelerate launch --cpu --num_processes 2 x.py`, without a configuration file, starts one process, and gives it the
# threads of one of two: OMP_NUM_THREADS is the number of physical cores divided by num_processes. MASTER_ADDR and
# MASTER_PORT are set, WORLD_SIZE and RANK are not, and nothing is said.
# One would guess two ranks over gloo, as with --num_processes 2 on GPUs, or else one process with all threads.
# Why it matters: a rehearsal on CPUs trains alone, at half of the speed, and looks like data-parallel training.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet torch==2.13.0 accelerate==1.15.0
cat > "$home/x.py" <<'PYTHON'
import os

names = ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
print("process", {name: os.environ.get(name) for name in names})
PYTHON
launch() {
  env -u OMP_NUM_THREADS -u WORLD_SIZE -u RANK -u MASTER_ADDR -u MASTER_PORT HF_HOME="$home" \
    "$home/venv/bin/accelerate" launch --cpu --num_processes "$1" --num_machines 1 --mixed_precision no --dynamo_backend no \
    "$home/x.py" 2>/dev/null
}
threads() { sed -n "s/.*'OMP_NUM_THREADS': '\([0-9]*\)'.*/\1/p" <<<"$1"; }
one=$(launch 1) two=$(launch 2)
printf -- '--num_processes 1: %s\n--num_processes 2: %s\n' "$one" "$two"
cores=$("$home/venv/bin/python" -c "import psutil; print(psutil.cpu_count(logical=False))")
halved=$(( cores / 2 > 0 ? cores / 2 : 1 ))
[ "$(grep -c process <<<"$two")" = 1 ] && grep -q "'WORLD_SIZE': None" <<<"$two" && [ "$(threads "$two")" = "$halved" ] \
  && echo "as in 2026-11" || { echo CHANGED; exit 1; }
