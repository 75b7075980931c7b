"""Kernels with checks and prints inserted, and what these report."""
