"""DeepSpeed's ZeRO stage 3, by its own configuration file, for a model that would fit without it.

torchrun --nproc-per-node 2 deepspeed_zero3.py --config deepspeed_zero3.json --steps 200

On processors: DS_ACCELERATOR=cpu before it. It needs deepspeed beside the advisor.
"""

import argparse

import deepspeed
import torch
from deepspeed.runtime.dataloader import RepeatingLoader
from deepspeed.utils.logging import set_log_level_from_string
from torch import nn

WIDTH, BLOCKS, SAMPLES = 384, 8, 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, help="DeepSpeed's configuration, as JSON.")
    parser.add_argument("--steps", type=int, default=100_000)
    asked = parser.parse_args()

    set_log_level_from_string("info")  # Of this level is the line with the speed.
    torch.manual_seed(0)
    layers = [layer for _ in range(BLOCKS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 10))
    data = torch.utils.data.TensorDataset(torch.randn(SAMPLES, WIDTH), torch.randint(10, (SAMPLES,)))
    engine, _, loader, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), training_data=data, config=asked.config
    )
    batches = iter(RepeatingLoader(loader))
    while engine.global_steps < asked.steps:
        inputs, labels = next(batches)
        loss = nn.functional.cross_entropy(engine(inputs.to(engine.device)), labels.to(engine.device))
        engine.backward(loss)
        engine.step()
    engine.destroy()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
