"""Matrix products on every GPU that CUDA shows, switched on and off by the program that started it."""

from collections.abc import Callable

from joulecast.power.switched_load import refuse_work, work_on_demand

_SIZES = (8192, 4096, 2048, 512)
_PRODUCTS = 4


def _work_on(device: str) -> Callable[[], None]:
    """Some products on one GPU: the largest matrices that it has memory for."""
    import torch

    for size in _SIZES:
        try:
            one, other, product = torch.empty((3, size, size), device=device).uniform_()
            break
        except torch.OutOfMemoryError:
            if size == _SIZES[-1]:
                raise

    def work() -> None:
        for _ in range(_PRODUCTS):
            torch.matmul(one, other, out=product)
        # Without it the queue grows, and the work outlasts its end.
        torch.cuda.synchronize(device)

    work()
    return work


def main() -> None:
    """Work on all GPUs on demand, or say why not."""
    try:
        import torch
    except ImportError:
        refuse_work("torch is not installed")
        return
    if not torch.cuda.is_available():
        refuse_work("torch sees no GPU")
        return
    devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    try:
        works = [_work_on(device) for device in devices]
    except RuntimeError as error:
        refuse_work(str(error).splitlines()[0])
        return
    names = [torch.cuda.get_device_name(device).replace(" ", "-") for device in devices]
    work_on_demand(works, names)


if __name__ == "__main__":
    main()
