"""A GPT-style decoder on synthetic tokens: an ordinary DistributedDataParallel training script.

Run it with `torchrun --nproc-per-node 2 decoder.py`. It computes on GPUs over NCCL where there are any, else on
CPUs over gloo. Sizes are flags, so that it runs on two cores and fills a large GPU.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Tokens(Dataset):
    """Sequences with a pattern that can be learned: each token is its predecessor plus a step, mod vocabulary."""

    def __init__(self, sequences: int, length: int, vocabulary: int) -> None:
        self.sequences, self.length, self.vocabulary = sequences, length, vocabulary

    def __len__(self) -> int:
        return self.sequences

    def __getitem__(self, index: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(index)
        start, step = torch.randint(self.vocabulary, (2,), generator=generator)
        return (start + step * torch.arange(self.length + 1)) % self.vocabulary


class Decoder(nn.Module):
    """Token and position embeddings, causal self-attention blocks, a language-model head."""

    def __init__(self, vocabulary: int, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            hidden = block(hidden, src_mask=self.mask, is_causal=True)
        return self.head(self.norm(hidden))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000, help="optimizer steps (default: %(default)s)")
    parser.add_argument(
        "--batch", type=int, default=8, help="sequences per rank and step (default: %(default)s)"
    )
    parser.add_argument("--length", type=int, default=32, help="tokens per sequence (default: %(default)s)")
    parser.add_argument("--width", type=int, default=192, help="width of the model (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=4, help="decoder blocks (default: %(default)s)")
    parser.add_argument("--heads", type=int, default=4, help="attention heads (default: %(default)s)")
    parser.add_argument("--vocabulary", type=int, default=4096, help="tokens in all (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--log-every", type=int, default=50, help="steps between log lines")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    use_cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if use_cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if use_cuda else torch.device("cpu")
    if use_cuda:
        torch.cuda.set_device(device)

    torch.manual_seed(0)
    model = Decoder(
        arguments.vocabulary, arguments.length, arguments.width, arguments.layers, arguments.heads
    ).to(device)
    parallel = DistributedDataParallel(model, device_ids=[device.index] if use_cuda else None)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=arguments.learning_rate)
    data = Tokens(100_000, arguments.length, arguments.vocabulary)
    sampler = DistributedSampler(data, shuffle=True, seed=0)
    loader = DataLoader(data, batch_size=arguments.batch, sampler=sampler, drop_last=True)

    step, epoch, since = 0, 0, time.perf_counter()
    while step < arguments.steps:
        sampler.set_epoch(epoch)
        for batch in loader:
            batch = batch.to(device)
            logits = parallel(batch[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            if step % arguments.log_every == 0 and rank == 0:
                rate = arguments.log_every * arguments.batch * world / (time.perf_counter() - since)
                print(f"step {step} loss {loss.item():.4f} {rate:.1f} samples/s", flush=True)
                since = time.perf_counter()
            if step >= arguments.steps:
                break
        epoch += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
