"""Kernels decoded into the machine's instruction set."""
