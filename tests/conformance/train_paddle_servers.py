"""A Paddle training with parameter servers that does not know the advisor exists; every role runs it.

`--strategy FILE` takes `make_strategy()` from an exported file, in the place of --mode and --geo-k.
"""

import argparse
import json
import runpy
import tempfile
import time

import numpy
import paddle
from paddle.distributed import fleet

ROWS, FIELDS, WIDTH, HIDDEN, BATCH, BATCHES = 2000, 8, 16, 128, 64, 20
"""The last one: batches of a pass over the data, which is what a line tells the mean step of."""


def read_options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=("async", "geo"), default="async")
    parser.add_argument("--geo-k", type=int, default=10)
    parser.add_argument("--strategy", default="")
    parser.add_argument("--passes", type=int, default=100_000)
    return parser.parse_args()


def build_strategy(options):
    if options.strategy:
        return runpy.run_path(options.strategy)["make_strategy"]()
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True  # first, because it resets a_sync_configs
    if options.mode == "geo":
        strategy.a_sync_configs = {"k_steps": options.geo_k}
    return strategy


def build_model():
    """Return the inputs, the loss, and the sum of all losses so far."""
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
    loss = paddle.mean(paddle.nn.functional.binary_cross_entropy_with_logits(answer, label))
    total = paddle.static.create_global_var([1], 0.0, "float32", persistable=True, name="total")
    paddle.assign(total + loss, total)
    return [ids, label], loss


def write_data(path, rank):
    dice = numpy.random.default_rng(rank)
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(BATCH * BATCHES):
            ids = dice.integers(0, ROWS, FIELDS)
            file.write(f"{FIELDS} {' '.join(map(str, ids))} 1 {int(ids[0] % 2 == 0)}\n")


def read(name):
    return numpy.array(paddle.static.global_scope().find_var(name).get_tensor())


def say(**line):
    print(json.dumps(line), flush=True)


def main():
    options = read_options()
    paddle.enable_static()
    paddle.seed(7)
    strategy = build_strategy(options)
    fleet.init(is_collective=False)
    inputs, loss = build_model()
    fleet.distributed_optimizer(paddle.optimizer.SGD(0.2), strategy).minimize(loss)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(paddle.static.default_startup_program())
    fleet.init_worker()
    rank, before, told = fleet.worker_index(), read("dense"), 0.0
    data = paddle.distributed.QueueDataset()
    data.init(batch_size=BATCH, use_var=inputs, pipe_command="cat", thread_num=1)
    say(facts={"software": {"paddle": paddle.__version__}})
    with tempfile.TemporaryDirectory() as folder:
        write_data(f"{folder}/data.txt", rank)
        data.set_filelist([f"{folder}/data.txt"])
        for _ in range(options.passes):
            begin = time.perf_counter()
            # In async the trainers of a data set fetch dense parameters; executor.run would not.
            executor.train_from_dataset(paddle.static.default_main_program(), data, thread=1)
            seconds, total = time.perf_counter() - begin, float(read("total")[0])
            say(rank=rank, step_time_s=seconds / BATCHES, samples=BATCH, loss=(total - told) / BATCHES)
            told = total
    say(rank=rank, dense_moved=bool(numpy.any(read("dense") != before)))
    fleet.stop_worker()


if __name__ == "__main__":
    main()
