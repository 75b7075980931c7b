"""Numerical faults: arithmetic, random bits, endless loops, false hints.

observer   evaluates units of plain operations, with tests of their arithmetic
loops      endless loops
claims     false hints and checks, and random bits that are unseeded, or repeat
"""

from pallas_debug.machine.numbers.claims import ClaimsObserver as ClaimsObserver
from pallas_debug.machine.numbers.claims import RandomBitsObserver as RandomBitsObserver
from pallas_debug.machine.numbers.loops import LoopObserver as LoopObserver
from pallas_debug.machine.numbers.observer import NumbersObserver as NumbersObserver
