"""Numbers that are wrong: arithmetic, sums in few bits, random bits, endless loops, false hints.

observer   units of plain operations with tests of their arithmetic
decisions  comparisons that a NaN decides
nan_trail   where NaNs and infinities go, from the operation to the results
sums       sums in 16-bit floats beside float32 ones
loops      loops without an end
repeated   arithmetic of a further run, without tests
claims     hints and checks that are false
assumptions  what pltpu.annotate says of memory
random_bits  random bits that are unseeded, or the same each time
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
