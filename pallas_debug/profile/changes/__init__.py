"""Costs compared: with a baseline, and of two kernels side by side."""
