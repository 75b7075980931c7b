"""Bundled Pallas kernels, for TPU and two for GPUs, each with a reference, argument sets and tests.

`pallas_debug_kernels.flash_attention` is the callable. The operations' folders are one level down,
in `pallas_debug_kernels.ops`, so that no submodule can shadow a callable.

Importing this package imports neither jax nor an operation: public names are imported lazily. It
must not import `pallas_debug`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .ops.collectives import all_gather as all_gather
    from .ops.flash_attention import flash_attention as flash_attention
    from .ops.gpu.matmul import hopper_matmul as hopper_matmul
    from .ops.gpu.softmax import triton_softmax as triton_softmax
    from .ops.layer_norm import layer_norm as layer_norm
    from .ops.matmul import matmul as matmul
    from .ops.paged_attention import paged_attention as paged_attention
    from .ops.pipelined import dma_copy as dma_copy
    from .ops.softmax import softmax as softmax
    from .ops.splash_attention import make_splash_attention as make_splash_attention
    from .ops.splash_attention import splash_attention as splash_attention
    from .ops.vector_add import vector_add as vector_add
    from .registry import BundledOperation as BundledOperation
    from .registry import Spec as Spec
    from .registry import gpu_operations as gpu_operations
    from .registry import operation as operation
    from .registry import operations as operations

_HOMES = {
    "BundledOperation": "registry",
    "Spec": "registry",
    "all_gather": "ops.collectives",
    "dma_copy": "ops.pipelined",
    "flash_attention": "ops.flash_attention",
    "gpu_operations": "registry",
    "hopper_matmul": "ops.gpu.matmul",
    "layer_norm": "ops.layer_norm",
    "make_splash_attention": "ops.splash_attention",
    "matmul": "ops.matmul",
    "operation": "registry",
    "operations": "registry",
    "paged_attention": "ops.paged_attention",
    "softmax": "ops.softmax",
    "splash_attention": "ops.splash_attention",
    "triton_softmax": "ops.gpu.softmax",
    "vector_add": "ops.vector_add",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    """Import the public name `name` from its module (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
