"""A Paddle training with parameter servers that does not know the advisor exists; every role runs it.

`--strategy FILE` takes `make_strategy()` from an exported file, in the place of --mode and --geo-k.
"""

import argparse
import json
import runpy
import sys
import time

import numpy
import paddle
from paddle.distributed import fleet

ROWS, FIELDS, WIDTH, HIDDEN, BATCH = 2000, 8, 16, 128, 64


def read_options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=("async", "geo"), default="async")
    parser.add_argument("--geo-k", type=int, default=10)
    parser.add_argument("--strategy", default="")
    parser.add_argument("--steps", type=int, default=100_000)
    return parser.parse_args()


def build_strategy(options):
    if options.strategy:
        return runpy.run_path(options.strategy)["make_strategy"]()
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True  # first, because it resets a_sync_configs
    if options.mode == "geo":
        strategy.a_sync_configs = {"k_steps": options.geo_k}
    return strategy


def build_loss():
    ids = paddle.static.data("ids", [None, FIELDS], "int64")
    label = paddle.static.data("label", [None, 1], "float32")
    rows = paddle.static.nn.embedding(
        ids, [ROWS, WIDTH], is_sparse=True, param_attr=paddle.ParamAttr(name="table")
    )
    hidden = paddle.static.nn.fc(
        paddle.reshape(rows, [-1, FIELDS * WIDTH]),
        HIDDEN,
        activation="relu",
        weight_attr=paddle.ParamAttr(name="dense"),
    )
    answer = paddle.static.nn.fc(hidden, 1)
    return paddle.mean(paddle.nn.functional.binary_cross_entropy_with_logits(answer, label))


def read_dense():
    return numpy.array(paddle.static.global_scope().find_var("dense").get_tensor())


def say(**line):
    # One write a line: trainers share the output.
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main():
    options = read_options()
    paddle.enable_static()
    paddle.seed(7)
    strategy = build_strategy(options)
    fleet.init(is_collective=False)
    loss = build_loss()
    fleet.distributed_optimizer(paddle.optimizer.SGD(0.5), strategy).minimize(loss)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(paddle.static.default_startup_program())
    fleet.init_worker()
    rank, before = fleet.worker_index(), read_dense()
    dice = numpy.random.default_rng(rank)
    say(facts={"software": {"paddle": paddle.__version__}})
    for _ in range(options.steps):
        ids = dice.integers(0, ROWS, (BATCH, FIELDS))
        feed = {"ids": ids, "label": (ids[:, :1] % 2 == 0).astype("float32")}
        begin = time.perf_counter()
        (value,) = executor.run(paddle.static.default_main_program(), feed=feed, fetch_list=[loss])
        say(rank=rank, step_time_s=time.perf_counter() - begin, samples=BATCH, loss=float(numpy.mean(value)))
    say(rank=rank, dense_moved=bool(numpy.any(read_dense() != before)))
    fleet.stop_worker()


if __name__ == "__main__":
    main()
