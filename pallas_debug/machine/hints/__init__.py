"""Hints from a run: what looks unintended, although a correct program may do it.

The observers read the shadow of a `MemoryTracker`, and handle each event before it does.
"""

from pallas_debug.machine.hints.carried import CarriedMemory as CarriedMemory
from pallas_debug.machine.hints.replaced import ReplacedWrites as ReplacedWrites
from pallas_debug.machine.hints.sums import LowPrecisionSums as LowPrecisionSums
