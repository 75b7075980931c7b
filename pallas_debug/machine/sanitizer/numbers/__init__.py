"""The sanitizer's judgement of numbers: arithmetic, endless loops, hints and checks.

observer   units of plain operations with tests of their arithmetic
nan_flow   where NaNs and infinities go, from the operation to the results
sums       sums in 16-bit floats beside float32 ones
loops      loops without an end
claims     hints and checks that are false
"""

from pallas_debug.machine.sanitizer.numbers.observer import NumbersObserver as NumbersObserver
