"""Numerical faults: arithmetic, low-precision sums, random bits, endless loops, false hints.

observer   evaluates units of plain operations, with tests of their arithmetic
decisions  comparisons whose outcome depends on a NaN
nan_trail   propagation of NaNs and infinities from an operation to the results
sums       sums in 16-bit floats, compared with float32 sums
loops      endless loops
repeated   arithmetic of a further run, without tests
claims     false hints and checks
assumptions  false assumptions in `pltpu.annotate`
random_bits  random bits that are unseeded, or repeat
"""

from pallas_debug.machine.sanitizer.numbers.assumptions import (
    AssumptionsObserver as AssumptionsObserver,
)
from pallas_debug.machine.sanitizer.numbers.claims import ClaimsObserver as ClaimsObserver
from pallas_debug.machine.sanitizer.numbers.loops import LoopObserver as LoopObserver
from pallas_debug.machine.sanitizer.numbers.observer import NumbersObserver as NumbersObserver
from pallas_debug.machine.sanitizer.numbers.random_bits import (
    RandomBitsObserver as RandomBitsObserver,
)
