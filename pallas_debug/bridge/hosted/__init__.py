"""Execution of kernels in a host callback, instead of the program that jax would lower."""
