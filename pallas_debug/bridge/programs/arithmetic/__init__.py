"""Arithmetic of a unit that goes wrong: exact results, bounds, overflow, NaN, lost precision."""
