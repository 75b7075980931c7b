"""Registry of the bundled operations, for tests, benchmarks and the demo."""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

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


def _bundled(
    module: ModuleType, name: str, summary: str, *, differentiable: tuple[int, ...] = ()
) -> BundledOperation:
    """Return the operation that a module defines as `name`, `<name>_reference` and `SPECS`."""
    return BundledOperation(
        name=name,
        summary=summary,
        function=getattr(module, name),
        reference=getattr(module, f"{name}_reference"),
        specs=module.SPECS,
        differentiable=differentiable,
    )


_OPERATIONS: tuple[BundledOperation, ...] = (
    _bundled(vector_add, "vector_add", "Element-wise sum of two vectors."),
    _bundled(softmax, "softmax", "Softmax over the last axis."),
    _bundled(layer_norm, "layer_norm", "Rows scaled to mean 0 and variance 1."),
    _bundled(matmul, "matmul", "Tiled matrix product with a fused activation."),
    _bundled(pipelined, "dma_copy", "Copy through VMEM, double-buffered by hand."),
    _bundled(
        flash_attention,
        "flash_attention",
        "Attention with an online softmax, forward and backward.",
        differentiable=(0, 1, 2),
    ),
    _bundled(
        splash_attention,
        "splash_attention",
        "Block-sparse attention over masks, forward and backward.",
        differentiable=(0, 1, 2),
    ),
    _bundled(
        paged_attention,
        "paged_attention",
        "Attention of one query per sequence over pages of keys and values.",
    ),
    _bundled(
        collectives,
        "all_gather",
        "All devices' rows on every device, by remote DMA around the ring.",
    ),
)


def operations() -> tuple[BundledOperation, ...]:
    """Return all bundled operations, simplest first."""
    return _OPERATIONS


def gpu_operations() -> tuple[BundledOperation, ...]:
    """Return the operations for GPUs; jax 0.10 imports Mosaic GPU only with absl-py."""
    from .ops.gpu import softmax as triton_softmax

    found = (_bundled(triton_softmax, "triton_softmax", "Softmax over rows, with Triton."),)
    try:
        from .ops.gpu import matmul as hopper_matmul
    except ModuleNotFoundError:
        return found

    summary = "Matrix product for Hopper, with Mosaic GPU."
    return (_bundled(hopper_matmul, "hopper_matmul", summary), *found)


def operation(name: str) -> BundledOperation:
    """Return the operation called `name`; a ValueError lists the known ones."""
    for candidate in _OPERATIONS:
        if candidate.name == name:
            return candidate
    known = ", ".join(candidate.name for candidate in _OPERATIONS)
    raise ValueError(f"There is no operation {name!r}. The operations are: {known}.")
