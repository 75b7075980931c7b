"""Comparison of a function's results with a reference's: where they differ, and how.

An engine like `checks/` and `analysis/`: it passes facts to `findings/`. `differences.py`,
`patterns.py` and `tolerances.py` know only arrays; `places.py` finds blocks and grid points by the
index maps of the kernel; `reference.py` runs the reference; `compare.py` puts these together.
"""
