"""Comparison of a function's results with those of a reference: where they differ, and how.

An engine like `checks/` and `analysis/`: it hands facts to `findings/`. It knows arrays, blocks and
grid points, and runs nothing; who calls it has run both functions. Only `origins.py` and
`compare.py` use the bridge; `differences.py` and `patterns.py` are numpy alone.
"""
