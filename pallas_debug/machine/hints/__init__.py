"""Hints from a run: what looks unintended, although a correct program may do it.

carried   memory written for one output block, and read for another
replaced  writes that nothing reads before they are replaced; elements with several writers
sums      sums that are kept in a 16-bit float type

The observers read the shadow of a `MemoryTracker`, and handle each event before it does.
"""

from pallas_debug.machine.hints.carried import CarriedMemory as CarriedMemory
from pallas_debug.machine.hints.replaced import ReplacedWrites as ReplacedWrites
from pallas_debug.machine.hints.sums import LowPrecisionSums as LowPrecisionSums
