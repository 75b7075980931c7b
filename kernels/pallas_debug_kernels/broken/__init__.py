"""Six kernels with one deliberate fault each, recorded with its kind, its line and a fix.

`BROKEN` lists them, `broken(name)` finds one; `expected` records how jax and libtpu react to each.
"""

from . import bounds, dma, initialization, memory, numerics
from .record import HANGS as HANGS
from .record import NAN as NAN
from .record import NOT_APPLICABLE as NOT_APPLICABLE
from .record import RACE as RACE
from .record import WRONG as WRONG
from .record import BrokenKernel as BrokenKernel
from .record import Expectation as Expectation
from .record import Expectations as Expectations
from .record import JaxEngine as JaxEngine
from .record import MachineFinding as MachineFinding
from .record import Reaction as Reaction
from .record import aborts as aborts
from .record import find as find
from .record import passes as passes
from .record import prints as prints
from .record import raises as raises

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
