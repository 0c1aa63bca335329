"""What the root of a data set must hold; known without torch, so that a campaign can check it."""

ROOT_LAYOUT = {
    "cifar10": "the folder cifar-10-batches-py (unpack cifar-10-python.tar.gz there)",
    "cifar100": "the folder cifar-100-python (unpack cifar-100-python.tar.gz there)",
    "imagenet": "the folders train/CLASS/*.JPEG and val/CLASS/*.JPEG",
}
