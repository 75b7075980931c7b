"""Dataflow through a whole program and its kernels: what depends on what, and what is unused."""
