"""Registry of the bundled operations, for tests, benchmarks and the demo."""

from collections.abc import Callable
from dataclasses import dataclass

import jax

from .ops import (
    collectives,
    flash_attention,
    layer_norm,
    matmul,
    paged_attention,
    pipelined,
    softmax,
    splash_attention,
    vector_add,
)
from .spec import Spec as Spec


@dataclass(frozen=True, kw_only=True)
class BundledOperation:
    """A bundled kernel: `function(*args, **kwargs)` must equal `reference(*args, **kwargs)`.

    `differentiable` lists the positions of the arguments with respect to which it has a gradient.
    """

    name: str
    summary: str
    function: Callable[..., jax.Array]
    reference: Callable[..., jax.Array]
    specs: tuple[Spec, ...]
    differentiable: tuple[int, ...] = ()

    def tagged(self, *tags: str) -> tuple[Spec, ...]:
        """Return the specs that have at least one of `tags`."""
        return tuple(spec for spec in self.specs if not set(tags).isdisjoint(spec.tags))

    def spec(self, name: str) -> Spec:
        """Return the spec called `name`; a ValueError lists the known ones."""
        for spec in self.specs:
            if spec.name == name:
                return spec
        known = ", ".join(spec.name for spec in self.specs)
        raise ValueError(f"{self.name} has no spec {name!r}. Its specs are: {known}.")


OPERATIONS: tuple[BundledOperation, ...] = (
    BundledOperation(
        name="vector_add",
        summary="Element-wise sum of two vectors.",
        function=vector_add.vector_add,
        reference=vector_add.vector_add_reference,
        specs=vector_add.SPECS,
    ),
    BundledOperation(
        name="softmax",
        summary="Softmax over the last axis, forward and backward.",
        function=softmax.softmax,
        reference=softmax.softmax_reference,
        specs=softmax.SPECS,
        differentiable=(0,),
    ),
    BundledOperation(
        name="layer_norm",
        summary="Rows scaled to mean 0 and variance 1, forward and backward.",
        function=layer_norm.layer_norm,
        reference=layer_norm.layer_norm_reference,
        specs=layer_norm.SPECS,
        differentiable=(0, 1, 2),
    ),
    BundledOperation(
        name="matmul",
        summary="Tiled matrix product with a fused activation.",
        function=matmul.matmul,
        reference=matmul.matmul_reference,
        specs=matmul.SPECS,
    ),
    BundledOperation(
        name="dma_copy",
        summary="Copy through VMEM, double-buffered by hand.",
        function=pipelined.dma_copy,
        reference=pipelined.copy_reference,
        specs=pipelined.SPECS,
    ),
    BundledOperation(
        name="flash_attention",
        summary="Attention with an online softmax, forward and backward.",
        function=flash_attention.flash_attention,
        reference=flash_attention.flash_attention_reference,
        specs=flash_attention.SPECS,
        differentiable=(0, 1, 2),
    ),
    BundledOperation(
        name="splash_attention",
        summary="Block-sparse attention over masks, forward and backward.",
        function=splash_attention.splash_attention,
        reference=splash_attention.splash_attention_reference,
        specs=splash_attention.SPECS,
        differentiable=(0, 1, 2),
    ),
    BundledOperation(
        name="paged_attention",
        summary="Attention of one query per sequence over pages of keys and values.",
        function=paged_attention.paged_attention,
        reference=paged_attention.paged_attention_reference,
        specs=paged_attention.SPECS,
    ),
    BundledOperation(
        name="all_gather",
        summary="All devices' rows on every device, by remote DMA around the ring.",
        function=collectives.all_gather,
        reference=collectives.all_gather_reference,
        specs=collectives.SPECS,
    ),
)


def operations() -> tuple[BundledOperation, ...]:
    """Return all bundled operations, simplest first."""
    return OPERATIONS


def operation(name: str) -> BundledOperation:
    """Return the operation called `name`; a ValueError lists the known ones."""
    for candidate in OPERATIONS:
        if candidate.name == name:
            return candidate
    known = ", ".join(candidate.name for candidate in OPERATIONS)
    raise ValueError(f"There is no operation {name!r}. The operations are: {known}.")
