"""A user's training that knows nothing of joulecast: DDP on a loader, with gradient accumulation if asked."""

import os
import sys
import time

import torch
import torch.distributed as dist


def main() -> None:
    micro_batches = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    samples = int(sys.argv[2]) if len(sys.argv) > 2 else 640
    torch.manual_seed(0)
    torch.set_num_threads(1)
    network = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        network = torch.nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    data = torch.utils.data.TensorDataset(torch.randn(samples, 256))
    loader = torch.utils.data.DataLoader(data, batch_size=16, num_workers=1)
    steps, first_s, last_s = 0, 0.0, 0.0
    for number, (images,) in enumerate(loader):
        network(images).pow(2).mean().backward()
        if (number + 1) % micro_batches == 0:
            if steps == 0 and os.environ.get("RANK") == "0":
                time.sleep(0.3)  # a warm-up that lasts longer than the other rank's
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            last_s = time.monotonic()
            first_s = first_s or last_s
    if os.environ.get("RANK", "0") == "0":
        print(f"{steps} steps of {(last_s - first_s) / (steps - 1)} s", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


main()
