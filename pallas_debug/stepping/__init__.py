"""Stepping through a kernel's run: commands, conditions, values, recordings. Imports no jax.

A session steps through a `Track`: a live run (`machine/debugger/`), or a recording of a run.
"""
