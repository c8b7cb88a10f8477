"""Two stages of torch's pipeline, each of them wrapped on its own."""

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
groups = [dist.new_group([each]) for each in range(2)]
model = DistributedDataParallel(
    torch.nn.Linear(8, 8), process_group=groups[rank], find_unused_parameters=True
)
stage = PipelineStage(model, rank, 2, torch.device("cpu"))
schedule = ScheduleGPipe(stage, 2, loss_fn=lambda output, target: (output - target).square().mean())
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(30):
    if rank == 0:
        schedule.step(torch.randn(4, 8))
    else:
        schedule.step(target=torch.randn(4, 8))
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
