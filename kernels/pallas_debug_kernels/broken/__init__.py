"""Kernels that are wrong on purpose, each with its fault, the line of it and a repaired twin.

`BROKEN` lists them; `broken(name)` finds one. What each engine says of each is in its `expected`,
and is checked by the project's tests on the versions of jax and libtpu that it names.
"""

from .record import BrokenKernel as BrokenKernel
from .record import Engine as Engine
from .record import Expected as Expected
from .record import Fault as Fault
from .record import Outcome as Outcome
from .record import Verdict as Verdict
from .registry import BROKEN as BROKEN
from .registry import broken as broken
