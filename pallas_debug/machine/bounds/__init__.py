"""Bounds: accesses outside of an array, and where their indices come from."""
