"""Comparison of costs: with a baseline, or of two kernels side by side."""
