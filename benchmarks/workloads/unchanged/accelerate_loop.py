"""A hand-written loop under accelerate, as a user writes it."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    """Train a small language model on random tokens."""
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, dropout=0.0)
    model = nn.Sequential(nn.Embedding(2000, 128), nn.TransformerEncoder(layer, 3), nn.Linear(128, 2000))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    loader = DataLoader(TensorDataset(torch.randint(0, 2000, (4096, 33))), batch_size=8, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(100):
        for (words,) in loader:
            output = model(words[:, :-1])
            loss = nn.functional.cross_entropy(output.reshape(-1, 2000), words[:, 1:].reshape(-1))
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
