"""Stepping through a kernel's run: commands, conditions, values, recordings. Imports no jax.

What is stepped through is a `Track`: a live run (`machine/debugger/`), or a recording of one.
"""
