"""Dataflow through a whole program and its kernels: dependences, and unused values."""
