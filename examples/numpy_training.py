"""A training in NumPy alone: processes that average their gradients over sockets, in buckets, while they still compute.

An ordinary program that prints one JSON line a step and takes its settings from its command:

    python numpy_training.py --ranks 2 --bucket-mb 0.25 --half 0 --steps 200

Each rank sends a bucket of gradients as soon as it is full, so small buckets overlap with the backward pass and large
ones cost fewer messages; with `--half 1` gradients travel in 16 bits.
"""

import argparse
import json
import multiprocessing
import os
import queue
import socket
import struct
import threading
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy

LENGTH = struct.Struct("<Q")


class Network:
    """Residual tanh layers of equal width, and the gradients of the mean squared distance to a target."""

    def __init__(self, width, layers, seed):
        dice = numpy.random.default_rng(seed)
        self.weights = [
            dice.normal(0, 1 / width**0.5, (width, width)).astype("float32") for _ in range(layers)
        ]
        self.share = numpy.float32(1 / layers**0.5)

    def forward(self, inputs):
        """Return the activations before each layer and at the end, and each layer's tanh."""
        activations, bends = [inputs], []
        for weight in self.weights:
            bends.append(numpy.tanh(activations[-1] @ weight))
            activations.append(activations[-1] + self.share * bends[-1])
        return activations, bends

    def backward(self, activations, bends, target):
        """Yield (layer, gradient) from the last layer to the first."""
        delta = (activations[-1] - target) * (2.0 / len(target))
        for layer in reversed(range(len(self.weights))):
            inner = delta * (1 - bends[layer] ** 2) * self.share
            yield layer, activations[layer].T @ inner
            delta = delta + inner @ self.weights[layer].T


class Averager:
    """Averages buckets over all ranks in a thread: rank 0 adds up what the others send, and sends it back."""

    def __init__(self, rank, peers, ranks, half):
        self.exchange = self.lead if rank == 0 else self.follow
        self.peers, self.ranks, self.dtype = peers, ranks, numpy.float16 if half else numpy.float32
        self.todo, self.done = queue.Queue(), queue.Queue()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            gradients = self.todo.get()
            flat = numpy.concatenate([gradient.ravel() for _, gradient in gradients]).astype(self.dtype)
            averaged = self.exchange(flat)
            offset = 0
            for layer, gradient in gradients:
                part = averaged[offset : offset + gradient.size].astype("float32")
                self.done.put((layer, part.reshape(gradient.shape)))
                offset += gradient.size

    def lead(self, flat):
        total = flat.astype("float32")
        for peer in self.peers:
            total += receive(peer, self.dtype)
        averaged = (total / self.ranks).astype(self.dtype)
        for peer in self.peers:
            send(peer, averaged)
        return averaged

    def follow(self, flat):
        send(self.peers[0], flat)
        return receive(self.peers[0], self.dtype)


def send(peer, array):
    peer.sendall(LENGTH.pack(array.nbytes))
    peer.sendall(array.tobytes())


def receive(peer, dtype):
    (length,) = LENGTH.unpack(read_exactly(peer, LENGTH.size))
    return numpy.frombuffer(read_exactly(peer, length), dtype)


def read_exactly(peer, length):
    data = bytearray(length)
    view, filled = memoryview(data), 0
    while filled < length:
        count = peer.recv_into(view[filled:])
        if count == 0:
            raise ConnectionError("another rank has ended")
        filled += count
    return data


def train(rank, address, options):
    peers = meet(rank, address, options.ranks)
    network = Network(options.width, options.layers, options.seed)
    teacher = Network(options.width, 2, options.seed + 1)
    dice = numpy.random.default_rng([options.seed, rank])
    averager = Averager(rank, peers, options.ranks, options.half)
    for step in range(options.steps):
        started_s = time.perf_counter()
        inputs = dice.normal(size=(options.batch, options.width)).astype("float32")
        target = teacher.forward(inputs)[0][-1]
        activations, bends = network.forward(inputs)
        bucket, filled = [], 0
        for layer, gradient in network.backward(activations, bends, target):
            bucket.append((layer, gradient))
            filled += gradient.nbytes
            if filled >= options.bucket_mb * 2**20 or layer == 0:
                averager.todo.put(bucket)
                bucket, filled = [], 0
        for _ in network.weights:
            layer, gradient = averager.done.get()
            network.weights[layer] -= options.learning_rate * gradient
        if rank == 0:
            loss = float(numpy.mean((activations[-1] - target) ** 2))
            seconds = time.perf_counter() - started_s
            line = {
                "step": step,
                "step_time_s": seconds,
                "samples": options.batch * options.ranks,
                "loss": loss,
            }
            print(json.dumps(line), flush=True)


def meet(rank, address, ranks):
    """Rank 0 listens, the others call it."""
    if rank:
        peer = socket.create_connection(address, timeout=60)
        peer.settimeout(None)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return [peer]
    peers = []
    for _ in range(ranks - 1):
        peer, _ = LISTENER.accept()
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peers.append(peer)
    return peers


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=96)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--bucket-mb", type=float, default=0.0625)
    parser.add_argument("--half", type=int, choices=(0, 1), default=0)
    parser.add_argument("--learning-rate", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    OPTIONS = parse_options()
    LISTENER = socket.create_server(("127.0.0.1", 0))
    context = multiprocessing.get_context("fork")
    address = LISTENER.getsockname()
    others = [
        context.Process(target=train, args=(rank, address, OPTIONS)) for rank in range(1, OPTIONS.ranks)
    ]
    for other in others:
        other.daemon = True
        other.start()
    train(0, address, OPTIONS)
    for other in others:
        other.join()
