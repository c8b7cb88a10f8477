"""Trains, and tells each experiment tracker of it as its documents say, to the server in TRACKERS."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
server = os.environ["TRACKERS"]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
logs = []
if dist.get_rank() == 0:
    import clearml
    import comet_ml
    import mlflow
    import neptune
    import swanlab
    import trackio
    import wandb

    trackio.init(project="mine", name="tonight", space_id="me/space")
    mlflow.set_tracking_uri(server)
    mlflow.start_run()
    run = wandb.init(project="mine")
    experiment = comet_ml.start(api_key="a" * 25, project_name="mine")
    task = clearml.Task.init(project_name="mine", task_name="tonight")
    swanlab.init(project="mine")
    series = neptune.init_run(project="me/mine", api_token="")["loss"]
    logs = [
        lambda loss, step: trackio.log({"loss": loss}),
        lambda loss, step: mlflow.log_metric("loss", loss, step=step),
        lambda loss, step: run.log({"loss": loss}),
        lambda loss, step: experiment.log_metric("loss", loss, step=step),
        lambda loss, step: task.get_logger().report_scalar("loss", "train", loss, step),
        lambda loss, step: swanlab.log({"loss": loss}),
        lambda loss, step: series.append(loss),
    ]
for step in range(100_000):
    batch = torch.randn(32, 64)
    loss = (model(batch) - batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        for log in logs:
            log(loss.item(), step)
