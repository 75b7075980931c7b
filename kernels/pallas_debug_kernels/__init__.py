"""Bundled Pallas kernels for TPU, each with a reference, argument sets and tests.

`pallas_debug_kernels.flash_attention` is the callable. The folders of the operations live one level
down, in `pallas_debug_kernels.ops`, so that no submodule can ever take the name of a callable.

Importing this package imports neither jax nor an operation: every name loads at its first use. It
must not import `pallas_debug`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .ops.flash_attention import flash_attention as flash_attention
    from .ops.matmul import matmul as matmul
    from .ops.vector_add import vector_add as vector_add
    from .registry import OPERATIONS as OPERATIONS
    from .registry import Operation as Operation
    from .registry import Spec as Spec
    from .registry import operation as operation
    from .registry import operations as operations

_HOMES = {
    "OPERATIONS": "registry",
    "Operation": "registry",
    "Spec": "registry",
    "flash_attention": "ops.flash_attention",
    "matmul": "ops.matmul",
    "operation": "registry",
    "operations": "registry",
    "vector_add": "ops.vector_add",
}

__all__ = [
    "OPERATIONS",
    "Operation",
    "Spec",
    "flash_attention",
    "matmul",
    "operation",
    "operations",
    "vector_add",
]


def __getattr__(name: str) -> object:
    """Load the public name `name` from its module (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
