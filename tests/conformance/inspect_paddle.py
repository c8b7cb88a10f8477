"""Runs inside Paddle's own environment: what Paddle makes of a DistributedStrategy, read off its programs and groups.

`inspect_paddle.py static|dynamic ASKED ANSWERED`: a JSON list of prototxt files, or of Python files with
`make_strategy()`, becomes a JSON list of what was seen. Static: the operators of the program that rank 0 of two would
run, counted, and the loss of its forward pass (the rest is built and not run: the CPU wheels have no static
communication; the one function that would open it is left out). Dynamic, under Paddle's own launcher: the groups of
gradients that two real ranks reduce.
"""

import json
import os
import runpy
import sys
import warnings

RANK = {
    "PADDLE_TRAINER_ID": "0", "PADDLE_TRAINERS_NUM": "2", "PADDLE_CURRENT_ENDPOINT": "127.0.0.1:6170",
    "PADDLE_TRAINER_ENDPOINTS": "127.0.0.1:6170,127.0.0.1:6171", "FLAGS_enable_pir_api": "0",
}  # fmt: skip
NUMBERS = ("value", "scale", "shape")
"""Attributes in which a program carries the numbers of a strategy."""


def load(path):
    from paddle.distributed import fleet

    if path.endswith(".py"):
        return runpy.run_path(path)["make_strategy"]()
    strategy = fleet.DistributedStrategy()
    strategy.load_from_prototxt(path)
    return strategy


def build_program(path):
    import paddle
    from paddle.distributed import fleet

    program, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(program, startup), paddle.utils.unique_name.guard():
        program.random_seed = startup.random_seed = 7
        image = paddle.static.data("x", [4, 2, 3, 5])
        hidden = paddle.reshape(convolve_depthwise(paddle.nn.functional.relu(image)), [4, 30])
        for _ in range(5):
            hidden = paddle.nn.functional.relu(paddle.static.nn.fc(hidden, 30))
        loss = paddle.mean(hidden)
        parameters = startup.clone()
        strategy = load(path)
        fleet.init(is_collective=True, strategy=strategy)
        fleet.distributed_optimizer(paddle.optimizer.Momentum(0.1), strategy).minimize(loss, startup)
    operators = {}
    for block in program.blocks:
        for operator in block.ops:
            name = operator.type.replace("c_allreduce_sum", "all_reduce")  # its name in 2.6.2
            operators[name] = operators.get(name, 0) + 1
    constants = []
    for block in (*program.blocks, *startup.blocks):
        for operator in block.ops:
            if operator.type in {"fill_constant", "scale"}:
                constants.append(
                    [
                        operator.type,
                        *(str(operator.attr(name)) for name in NUMBERS if operator.has_attr(name)),
                    ]
                )
    return {"operators": operators, "constants": constants, "loss": compute_loss(program, parameters, loss)}


def convolve_depthwise(image):
    """Without parameters that are trained: the gradients, which others count, stay those of the linear layers."""
    import paddle

    frozen = paddle.ParamAttr(trainable=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return paddle.static.nn.conv2d(
            image, 2, 3, padding=1, groups=2, param_attr=frozen, bias_attr=False, use_cudnn=False
        )


def compute_loss(program, parameters, loss):
    """Run what leads to the loss, which nothing of the communication does; `parameters` fills in the parameters.

    None where Paddle cannot take the forward pass out alone: of programs with conditional blocks or loss scaling.
    """
    import numpy
    import paddle

    if program.num_blocks > 1 or program.global_block().has_var("loss_scaling_0"):
        return None
    with paddle.static.scope_guard(paddle.static.Scope()):
        executor = paddle.static.Executor(paddle.CPUPlace())
        executor.run(parameters)
        values = numpy.linspace(-1, 1, 120, dtype="float32").reshape(4, 2, 3, 5)
        forward = program.clone(for_test=True)
        return float(executor.run(forward, feed={"x": values}, fetch_list=[loss.name])[0])


def train(path):
    import paddle
    from paddle.distributed import fleet

    fleet.init(is_collective=True, strategy=load(path))
    paddle.seed(7)
    model = paddle.nn.Sequential(*(paddle.nn.Linear(300, 300) for _ in range(6)))
    optimizer = paddle.optimizer.Momentum(0.01, parameters=model.parameters())
    optimizer = fleet.distributed_optimizer(optimizer)
    model = fleet.distributed_model(model)
    paddle.seed(paddle.distributed.get_rank())
    for _ in range(4):
        loss = paddle.mean(model(paddle.randn([4, 300])) ** 2)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
    total = sum(float((parameter.astype("float64") ** 2).sum()) for parameter in model.parameters())
    return {"groups": [len(group) for group in model.group_indices], "sum": total}


def main():
    mode, asked, answered = sys.argv[1:]
    if mode == "static":
        os.environ.update(RANK)
        import paddle
        from paddle.distributed.fleet.meta_optimizers.common import CollectiveHelper

        paddle.enable_static()
        CollectiveHelper._init_communicator = lambda *_, **__: None
    seen = []
    with open(asked, encoding="utf-8") as file:
        paths = json.load(file)
    for path in paths:
        try:
            seen.append(build_program(path) if mode == "static" else train(path))
        except Exception as error:
            seen.append({"error": f"{type(error).__name__}: {error}"})
    if os.environ.get("PADDLE_TRAINER_ID", "0") == "0":
        with open(answered, "w", encoding="utf-8") as file:
            json.dump(seen, file)


if __name__ == "__main__":
    main()
