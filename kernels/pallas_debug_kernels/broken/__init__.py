"""Six kernels with one deliberate fault each, recorded with its kind, its line and a fix.

`BROKEN` lists them, `broken(name)` finds one; `refused` records how jax or libtpu refuses one.
"""

from . import bounds, dma, initialization, memory, numerics
from .record import BrokenKernel as BrokenKernel
from .record import Refusal as Refusal
from .record import find as find

BROKEN: tuple[BrokenKernel, ...] = (
    *bounds.KERNELS,
    *initialization.KERNELS,
    *dma.KERNELS,
    *numerics.KERNELS,
    *memory.KERNELS,
)


def broken(name: str) -> BrokenKernel:
    """Return the bundled broken kernel called `name`; a ValueError lists the known ones."""
    return find(BROKEN, name)
