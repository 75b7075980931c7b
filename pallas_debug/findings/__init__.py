"""Faults: what engines find, what it is called, and what is said of it."""
