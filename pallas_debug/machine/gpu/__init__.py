"""Execution of loads, stores and atomic updates of a GPU's memory, by address and under masks."""
