#!/usr/bin/env bash
# comet_ml 3.58.8: COMET_MODE is not read by Comet. With COMET_MODE=DISABLED or OFFLINE, and no key, both Experiment() and
# start() raise "Comet.ml requires an API key", as they do without the variable; start(online=False) makes an offline one.
# One would guess that it works as WANDB_MODE does: Hugging Face documents it beside WANDB_MODE, and reads it itself in its
# callback, so that it holds for Trainer and for nothing else.
# It matters to whoever runs other people's training scripts where no tracker may be reached: a variable is not enough, and
# start() has to be given its arguments.
# 2026-11-28
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet comet_ml==3.58.8
cat > "$folder/asked.py" <<'PY'
import os
import sys

import comet_ml


def say(what: str, make) -> bool:
    try:
        print(f"{what}: {type(make()).__name__}", flush=True)
    except ValueError as error:
        print(f"{what}: {str(error)[:33]}", flush=True)
        return True
    return False


raised = [say("Experiment()", comet_ml.Experiment), say("start()", comet_ml.start)]
offline = say("start(online=False)", lambda: comet_ml.start(online=False))
os._exit(0 if raised == [True, True] and not offline else 1)
PY
cd "$folder"
changed=0
for mode in "" DISABLED OFFLINE; do
  echo "COMET_MODE=$mode"
  env -u COMET_API_KEY HOME="$folder" COMET_MODE="$mode" venv/bin/python asked.py 2>/dev/null </dev/null || changed=1
done
[ "$changed" = 0 ] && echo "as in 2026-11" || echo CHANGED
exit "$changed"
