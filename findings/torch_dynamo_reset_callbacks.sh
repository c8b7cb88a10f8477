#!/usr/bin/env bash
# torch 2.13.0, seen on 2026-11-28: torch._dynamo.reset(), and torch.compiler.reset() through it, unregister every
# callback of on_compile_start and on_compile_end, whoever registered it. The next compilation calls none of them.
# One would guess that it clears what was compiled, as its documentation says ("clear all compile caches and restore
# initial state"), and that watchers stay, as gc.callbacks do: a profiler or trainer registers them once, at import.
# Why it matters: tests and trainings that call reset() between models lose their compile times without a word, and what
# looks like a training that has stopped compiling may compile in every step.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet torch==2.13.0
cat > "$home/reset.py" <<'PYTHON'
import torch
import torch._dynamo

seen = []
torch._dynamo.on_compile_start(lambda *_: seen.append("start"))
torch._dynamo.on_compile_end(lambda *_: seen.append("end"))


def compile_once(size):
    ran = []

    def backend(graph, _):
        ran.append("compiled")
        return graph.forward

    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(size))
    return ran


print("before reset:", compile_once(1), "seen by the callbacks:", seen)
seen.clear()
torch.compiler.reset()
print("after reset:", compile_once(2), "seen by the callbacks:", seen)
PYTHON
told=$("$home/venv/bin/python" "$home/reset.py" 2>/dev/null)
echo "$told"
[ "$told" = "before reset: ['compiled'] seen by the callbacks: ['start', 'end']
after reset: ['compiled'] seen by the callbacks: []" ] && echo "as in 2026-11" || { echo CHANGED; exit 1; }
