"""A Paddle dynamic-graph training that does not know the advisor exists."""

import paddle

paddle.distributed.init_parallel_env()
paddle.seed(paddle.distributed.get_rank())
layers = [layer for _ in range(8) for layer in (paddle.nn.Linear(512, 512), paddle.nn.ReLU())]
model = paddle.DataParallel(paddle.nn.Sequential(*layers))
optimizer = paddle.optimizer.Adam(1e-3, parameters=model.parameters())
for _ in range(100_000):
    inputs = paddle.randn([8, 512])
    loss = paddle.mean((model(inputs) - inputs) ** 2)
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
