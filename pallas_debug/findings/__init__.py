"""Faults: their names, and what is said of each."""
