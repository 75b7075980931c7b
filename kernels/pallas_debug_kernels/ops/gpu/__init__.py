"""Kernels for GPUs. They run on no TPU, and are therefore not among the `operations()`."""
