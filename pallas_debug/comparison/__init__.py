"""Comparison of a function's results with those of a reference.

`patterns.py` and `tolerances.py` know only arrays; `chain.py` runs a kernel on the machine and
follows what `writes.py` has logged from a wrong element to its writers; `rounding.py` compares
again with products as on a TPU; `compare.py` combines them into findings.
"""
