"""Numerical faults: arithmetic, random bits, endless loops, false hints.

observer   evaluates units of plain operations, with tests of their arithmetic
nan_trail  propagation of NaNs and infinities from an operation to the results
reach      whether more than values depends on a wrapped integer
loops      endless loops
claims     false hints and checks
random_bits  random bits that are unseeded, or repeat
"""

from pallas_debug.machine.numbers.claims import ClaimsObserver as ClaimsObserver
from pallas_debug.machine.numbers.claims import (
    RandomBitsObserver as RandomBitsObserver,
)
from pallas_debug.machine.numbers.loops import LoopObserver as LoopObserver
from pallas_debug.machine.numbers.observer import NumbersObserver as NumbersObserver
