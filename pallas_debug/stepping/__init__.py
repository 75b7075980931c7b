"""Stepping through a kernel's run: commands, conditions, values. Imports no jax.

A session steps through a `Track`: the live run of `machine/debugger/`.
"""
