"""A step of a module with skips in stages, by every schedule, against the module itself (run by torchrun)."""

import torch
from torch import distributed, nn

from joulecast.partition.tasks import capture_tasks
from joulecast.partition.torch_stages import cut_into_stages, pipeline_of, stages_of_rank

MICRO_BATCHES = 4


class Skipping(nn.Module):
    """What the first layer and the input give is read again by the last ones."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(6, 6) for _ in range(4))
        self.norm, self.relu = nn.BatchNorm1d(6), nn.ReLU(inplace=True)

    def forward(self, x):
        first = self.relu(self.a(x))
        deep = self.c(self.relu(self.norm(self.b(first))))
        return self.d(self.relu(deep + x.view(x.shape[0], -1)) + first)


def trained(schedule: str, chunks: int) -> None:
    """Assert that losses and parameters after two steps are those of the whole module."""
    torch.manual_seed(1)
    module, whole = Skipping(), Skipping()
    whole.load_state_dict(module.state_dict())
    batch, target = torch.randn(3 * MICRO_BATCHES, 6), torch.arange(3 * MICRO_BATCHES) % 6
    tasks = [task.name for task in capture_tasks(module, batch[:3]).tasks]
    count = chunks * distributed.get_world_size()
    stages = [
        tasks[len(tasks) * at // count : len(tasks) * (at + 1) // count] for at in range(count)
    ]
    mine = cut_into_stages(module, [batch[:3]], stages, stages_of_rank(count))
    loss = nn.functional.cross_entropy
    pipeline = pipeline_of(mine, count, schedule, MICRO_BATCHES, loss)
    optimizer = torch.optim.SGD([{"params": stage.parameters()} for stage in mine], lr=0.5)
    of_whole = torch.optim.SGD(whole.parameters(), lr=0.5)
    for _ in range(2):
        losses, expected = [], []
        pipeline.step(batch, target=target, losses=losses)
        for part, its_target in zip(batch.split(3), target.split(3), strict=True):
            expected.append(loss(whole(part), its_target))
            (expected[-1] / MICRO_BATCHES).backward()
        if losses:
            torch.testing.assert_close(torch.stack(losses), torch.stack(expected))
        for each in (optimizer, of_whole):
            each.step()
            each.zero_grad()
    parameters = dict(whole.named_parameters())
    own = {name for stage in mine for name, _ in stage.named_parameters()}
    for name, parameter in module.named_parameters():
        if name in own:
            torch.testing.assert_close(parameter, parameters[name])
    of_ranks = [None] * distributed.get_world_size()
    distributed.all_gather_object(of_ranks, own)
    assert sorted(name for names in of_ranks for name in names) == sorted(parameters)


distributed.init_process_group("gloo")
for each, chunks in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2)):
    trained(each, chunks)
distributed.destroy_process_group()
