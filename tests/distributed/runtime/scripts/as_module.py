"""Run with -m: checks what a script sees of itself, with workers that are spawned and a package named `agent`."""

import os
import pickle
import sys

import torch
from torch.utils.data import DataLoader, Dataset

import agent


class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        patched = "fleet_advisor_runtime.inject.patches" in sys.modules
        return torch.tensor([float(index), float(patched), float(os.getpid() != PARENT)])


PARENT = int(os.environ.setdefault("PARENT_PID", str(os.getpid())))

if __name__ == "__main__":
    pickle.loads(pickle.dumps(Numbers()))
    rows = torch.cat(list(DataLoader(Numbers(), 4, num_workers=1, multiprocessing_context="spawn")))
    with open(os.path.join(os.environ["OUT"], "seen"), "w") as file:
        file.write(
            repr(
                {
                    "agent": agent.NAME,
                    "argv": [os.path.basename(sys.argv[0]), *sys.argv[1:]],
                    "path": os.path.realpath(sys.path[0]),
                    "indices": rows[:, 0].tolist(),
                    "patched_in_worker": bool(rows[:, 1].any()),
                    "in_child": bool(rows[:, 2].all()),
                    "wandb": os.environ.get("WANDB_MODE"),
                    "threads_variable_honoured": "torch" in sys.modules,
                }
            )
        )
