"""Broken kernels, one module per topic: those bundled for the guides, and many more.

Importable from all tests; a child process needs `tests` in its PYTHONPATH.
"""

from pallas_debug_kernels.broken import BROKEN as BUNDLED
from pallas_debug_kernels.broken import BrokenKernel as BrokenKernel
from pallas_debug_kernels.broken import Refusal as Refusal
from pallas_debug_kernels.broken import find

from . import alignment as alignment
from . import arithmetic as arithmetic
from . import attention as attention
from . import bounds as bounds
from . import dma as dma
from . import gpu as gpu
from . import grid as grid
from . import hints as hints
from . import initialization as initialization
from . import lowering as lowering
from . import memory as memory
from . import misuse as misuse
from . import numerics as numerics
from . import order as order
from . import outputs as outputs
from . import remote as remote
from . import semaphores as semaphores
from . import stale as stale
from .record import KERNELS

FOR_GPU = tuple(kernel for kernel in KERNELS if kernel.topic == "gpu")
"""Kernels that no TPU runs."""

ALL: tuple[BrokenKernel, ...] = (*BUNDLED, *(k for k in KERNELS if k not in FOR_GPU))

BROKEN = tuple(kernel for kernel in ALL if kernel.topic not in ("order", "remote"))
"""Those that the static analysis is asked about, and not only the kernel machine."""


def broken(name: str) -> BrokenKernel:
    return find(ALL, name)
