"""What goes between the stages of a pipeline, and what carries it.

A value that crosses a cut may be a tensor, a size, or a tuple of such. Its tensors travel for every
micro-batch; all else depends on shapes alone, is agreed on once (:class:`Layout`), and is checked ever after.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from joulecast.errors import JoulecastError


class Request(Protocol):
    """A message on its way."""

    def Wait(self) -> Any:  # noqa: N802 (mpi4py's name)
        """Return when it is there."""

    def Test(self) -> bool:  # noqa: N802
        """Whether it is there."""


class Transport(Protocol):
    """What a stage needs of a communicator; mpi4py's have it."""

    @property
    def rank(self) -> int:
        """Own number."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    def Isend(self, buf: Any, dest: int, tag: int) -> Request:  # noqa: N802
        """Begin to send memory, which stays as it is meanwhile."""

    def Irecv(self, buf: Any, source: int, tag: int) -> Request:  # noqa: N802
        """Begin to receive into memory."""

    def send(self, obj: Any, dest: int) -> None:
        """Send an object."""

    def recv(self, *, source: int) -> Any:
        """Receive an object."""


@dataclass(frozen=True)
class TensorLike:
    """What is the same of a tensor in every micro-batch."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    has_gradient: bool

    def place(self) -> Tensor:
        """Memory for one."""
        return torch.empty(self.shape, dtype=self.dtype)

    def matches(self, leaf: Any) -> bool:
        """Whether that is such a tensor."""
        if not isinstance(leaf, Tensor):
            return False
        return (tuple(leaf.shape), leaf.dtype) == (self.shape, self.dtype)

    @property
    def byte_count(self) -> int:
        """Length of a message with it."""
        return int(torch.Size(self.shape).numel()) * self.dtype.itemsize


@dataclass(frozen=True)
class Layout:
    """A value that crosses: its tensors travel, all else in it (sizes, ``None``) is agreed on once."""

    tree: pytree.TreeSpec
    leaves: tuple[Any, ...]

    @classmethod
    def of(cls, value: Any) -> "Layout":
        """The layout of a value like those to come."""
        leaves, tree = pytree.tree_flatten(value)
        likes = [
            TensorLike(tuple(leaf.shape), leaf.dtype, leaf.requires_grad)
            if isinstance(leaf, Tensor)
            else leaf
            for leaf in leaves
        ]
        return cls(tree, tuple(likes))

    def tensors(self) -> list[tuple[int, TensorLike]]:
        """Its tensors and where they are among the leaves."""
        return [(at, like) for at, like in enumerate(self.leaves) if isinstance(like, TensorLike)]

    def leaves_of(self, name: str, value: Any) -> list[Any]:
        """The leaves of what task ``name`` gives; all but the numbers in tensors must be as was agreed.

        Raises:
            JoulecastError: they are not.
        """
        leaves, tree = pytree.tree_flatten(value)
        same = tree == self.tree and all(
            like.matches(leaf) if isinstance(like, TensorLike) else leaf == like
            for leaf, like in zip(leaves, self.leaves, strict=True)
        )
        if not same:
            raise JoulecastError(
                f"pipeline: what task `{name}` gives to another stage is not what was agreed on; between "
                "stages shapes and plain numbers must be the same for every micro-batch"
            )
        return leaves

    def filled(self, tensor: Callable[[int], Tensor]) -> Any:
        """A value of this layout with the tensors that ``tensor`` gives for their places."""
        leaves = [
            tensor(at) if isinstance(like, TensorLike) else like
            for at, like in enumerate(self.leaves)
        ]
        return pytree.tree_unflatten(leaves, self.tree)


@dataclass(frozen=True, eq=False)
class Port:
    """One tensor's way from or to another stage; ``number`` tells it from others between the two."""

    value: str
    at: int
    rank: int
    number: int
    like: TensorLike


def ports(layouts: Mapping[str, Layout], rank: int) -> list[Port]:
    """The ways of all tensors that go between this stage and another; the same numbers on both sides."""
    crossing = [
        (name, at, like) for name, layout in layouts.items() for at, like in layout.tensors()
    ]
    return [Port(name, at, rank, number, like) for number, (name, at, like) in enumerate(crossing)]


def memory_of(tensor: Tensor) -> Any:
    """The bytes of a contiguous tensor, for MPI; not a copy."""
    return tensor.reshape(-1).view(torch.uint8).numpy()
