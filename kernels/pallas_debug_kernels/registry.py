"""The list of bundled operations: what tests, benchmarks and the demo iterate over."""

from collections.abc import Callable
from dataclasses import dataclass

import jax

from .ops import flash_attention, matmul, vector_add
from .spec import Spec as Spec


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A bundled kernel: `function(*args, **kwargs)` must equal `reference(*args, **kwargs)`."""

    name: str
    summary: str
    function: Callable[..., jax.Array]
    reference: Callable[..., jax.Array]
    specs: tuple[Spec, ...]

    def tagged(self, *tags: str) -> tuple[Spec, ...]:
        """The specs that carry at least one of `tags`."""
        return tuple(spec for spec in self.specs if not set(tags).isdisjoint(spec.tags))

    def spec(self, name: str) -> Spec:
        """The spec called `name`; a ValueError lists the known ones."""
        for spec in self.specs:
            if spec.name == name:
                return spec
        known = ", ".join(spec.name for spec in self.specs)
        raise ValueError(f"{self.name} has no spec {name!r}. Its specs are: {known}.")


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="vector_add",
        summary="Element-wise sum of two vectors.",
        function=vector_add.vector_add,
        reference=vector_add.vector_add_reference,
        specs=vector_add.SPECS,
    ),
    Operation(
        name="matmul",
        summary="Tiled matrix product with a fused activation.",
        function=matmul.matmul,
        reference=matmul.matmul_reference,
        specs=matmul.SPECS,
    ),
    Operation(
        name="flash_attention",
        summary="Attention with an online softmax, forward only.",
        function=flash_attention.flash_attention,
        reference=flash_attention.flash_attention_reference,
        specs=flash_attention.SPECS,
    ),
)


def operations() -> tuple[Operation, ...]:
    """All bundled operations, simplest first."""
    return OPERATIONS


def operation(name: str) -> Operation:
    """The operation called `name`; a ValueError lists the known ones."""
    for candidate in OPERATIONS:
        if candidate.name == name:
            return candidate
    known = ", ".join(candidate.name for candidate in OPERATIONS)
    raise ValueError(f"There is no operation {name!r}. The operations are: {known}.")
