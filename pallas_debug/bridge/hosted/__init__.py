"""Kernels that a host callback runs, in place of the program that jax would lower."""
