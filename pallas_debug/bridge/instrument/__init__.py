"""Kernels with checks and prints inserted, and observers of what these report."""
