"""Starts its own ranks with torch.multiprocessing.spawn."""

import torch.multiprocessing as multiprocessing


def work(rank):
    print("rank", rank)


if __name__ == "__main__":
    multiprocessing.spawn(work, nprocs=2)
