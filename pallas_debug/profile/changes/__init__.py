"""Comparison of the costs of two kernels, side by side."""
