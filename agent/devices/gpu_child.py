"""The child that asks NVML: a driver that hangs, hangs this process alone. Standard library and pynvml only.

Run as `python -m agent.devices.gpu_child VISIBLE`, VISIBLE being CUDA_VISIBLE_DEVICES in JSON. Standard output: one
JSON line that describes the devices, then one for every JSON line of standard input: "sample" or "processes". When its
input closes, however the agent died, it is gone at once, also while a call hangs.
"""

import json
import os
import queue
import sys
import threading
from typing import Any

from agent.devices.nvml import open_nvml

_DCGM = {"nv-hostengine", "dcgm-exporter"}


def main() -> None:
    """Answer until the input closes."""
    questions: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(questions,), name="questions", daemon=True).start()
    nvml = open_nvml(json.loads(sys.argv[1]), with_gpm=not _is_dcgm_running())
    _say({"devices": nvml.describe() if nvml else []})
    while True:
        question = questions.get()
        if nvml is None:
            _say({"devices": [], "processes": []})
        elif question == "processes":
            _say({"processes": nvml.list_processes()})
        else:
            _say(nvml.sample())


def _listen(questions: "queue.SimpleQueue[str]") -> None:
    for line in sys.stdin:
        questions.put(json.loads(line))
    # Not sys.exit: the main thread may be inside a call of the driver that never returns.
    os._exit(0)


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _is_dcgm_running() -> bool:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/comm") as file:
                    name = file.read().strip()
            except OSError:
                continue
            if name in _DCGM:
                return True
    return False


if __name__ == "__main__":
    main()
