"""Messages between the stages of a pipeline, and their transport.

A value that crosses a cut may be a tensor, a size, or a tuple of these. Its tensors are sent for every
micro-batch. The rest depends on shapes only: stages agree on it once (:class:`Layout`) and check it
afterwards.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from joulecast.errors import JoulecastError


class Request(Protocol):
    """A message that is being sent or received."""

    def Wait(self) -> Any:  # noqa: N802 (mpi4py's name)
        """Return when the message is complete."""

    def Test(self) -> bool:  # noqa: N802
        """Whether the message is complete."""


class Transport(Protocol):
    """The methods of a communicator that a stage needs; those of mpi4py have them."""

    @property
    def rank(self) -> int:
        """Number of this rank."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    def Isend(self, buf: Any, dest: int, tag: int) -> Request:  # noqa: N802
        """Begin to send memory, which must not change meanwhile."""

    def Irecv(self, buf: Any, source: int, tag: int) -> Request:  # noqa: N802
        """Begin to receive into memory."""

    def send(self, obj: Any, dest: int) -> None:
        """Send an object."""

    def recv(self, *, source: int) -> Any:
        """Receive an object."""


@dataclass(frozen=True)
class TensorLike:
    """The properties of a tensor that are the same in every micro-batch."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    has_gradient: bool

    def place(self) -> Tensor:
        """Memory for one such tensor."""
        return torch.empty(self.shape, dtype=self.dtype)

    def matches(self, leaf: Any) -> bool:
        """Whether ``leaf`` is such a tensor."""
        if not isinstance(leaf, Tensor):
            return False
        return (tuple(leaf.shape), leaf.dtype) == (self.shape, self.dtype)

    @property
    def byte_count(self) -> int:
        """Bytes of a message with such a tensor."""
        return int(torch.Size(self.shape).numel()) * self.dtype.itemsize


@dataclass(frozen=True)
class Layout:
    """Layout of a value that crosses a cut: its tensors are sent, the rest (sizes, ``None``) is constant."""

    tree: pytree.TreeSpec
    leaves: tuple[Any, ...]

    @classmethod
    def of(cls, value: Any) -> "Layout":
        """The layout of values like this one."""
        leaves, tree = pytree.tree_flatten(value)
        likes = [
            TensorLike(tuple(leaf.shape), leaf.dtype, leaf.requires_grad)
            if isinstance(leaf, Tensor)
            else leaf
            for leaf in leaves
        ]
        return cls(tree, tuple(likes))

    def tensors(self) -> list[tuple[int, TensorLike]]:
        """The tensors and their positions among the leaves."""
        return [(at, like) for at, like in enumerate(self.leaves) if isinstance(like, TensorLike)]

    def leaves_of(self, name: str, value: Any) -> list[Any]:
        """The leaves of the value of task ``name``.

        Raises:
            JoulecastError: they differ from this layout in more than the numbers in tensors.
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
        """A value of this layout; ``tensor`` returns the tensor of each position."""
        leaves = [
            tensor(at) if isinstance(like, TensorLike) else like
            for at, like in enumerate(self.leaves)
        ]
        return pytree.tree_unflatten(leaves, self.tree)


@dataclass(frozen=True, eq=False)
class Port:
    """One tensor that comes from or goes to another stage; ``number`` is unique between the two stages."""

    value: str
    at: int
    rank: int
    number: int
    like: TensorLike


def ports(layouts: Mapping[str, Layout], rank: int) -> list[Port]:
    """The ports of all tensors between this stage and another, with the same numbers on both sides."""
    crossing = [
        (name, at, like) for name, layout in layouts.items() for at, like in layout.tensors()
    ]
    return [Port(name, at, rank, number, like) for number, (name, at, like) in enumerate(crossing)]


def memory_of(tensor: Tensor) -> Any:
    """The bytes of a contiguous tensor for MPI, without a copy."""
    return tensor.reshape(-1).view(torch.uint8).numpy()
