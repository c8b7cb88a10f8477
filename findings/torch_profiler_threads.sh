#!/usr/bin/env bash
# torch 2.13.0 (CPU): torch.profiler records no operator of a thread that the script started itself, whether it was started
# before or inside of profile(): aten::mm of a threading.Thread is neither in key_averages() nor in the exported trace, while
# backward's, which runs in a thread of autograd, is there. Only
# experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=True) records both.
# One would guess that a trace of a process shows all its threads: the trace has a row for each, and py-spy and perf do.
# It matters where the step's time is looked for: batches that are collated, moved or augmented in a prefetching thread,
# asynchronous checkpoints and pipelines' threads are missing without a word, so that their load looks like idle waiting.
# 2026-11-28
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cd "$folder"
venv/bin/python - 2>/dev/null <<'PY'
import json
import queue
import sys
import threading

import torch
from torch.profiler import ProfilerActivity, profile

square = torch.ones(8, 8)
orders: queue.Queue[threading.Event | None] = queue.Queue()


def work() -> None:
    while (done := orders.get()) is not None:
        torch.mm(square, square)
        done.set()


def recorded(what: str, **more) -> tuple[bool, bool, bool]:
    """Whether an old thread's mm, a new thread's bmm and backward's mul are in the trace."""
    with profile(activities=[ProfilerActivity.CPU], **more) as profiler:
        done = threading.Event()
        orders.put(done)
        done.wait()
        new = threading.Thread(target=lambda: torch.bmm(square[None], square[None]))
        new.start()
        new.join()
        (square.clone().requires_grad_() * 2).sum().backward()
    profiler.export_chrome_trace("trace.json")
    with open("trace.json") as file:
        names = {event["name"] for event in json.load(file)["traceEvents"] if event.get("cat") == "cpu_op"}
    seen = "aten::mm" in names, "aten::bmm" in names, "MulBackward0" in names
    print(f"{what}: of an older thread {seen[0]}, of a new thread {seen[1]}, of autograd's {seen[2]}")
    return seen


old = threading.Thread(target=work)
old.start()
plain = recorded("profile()")
everything = recorded(
    "profile_all_threads=True",
    experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=True),
)
orders.put(None)
old.join()
expected = plain == (False, False, True) and everything == (True, True, True)
print("as in 2026-11" if expected else "CHANGED")
sys.exit(not expected)
PY
