"""Reproduce a kernel as one script that needs only jax, and shrink it.

recorded  a kernel for a target, read from a dump
script    the script generated from it
template  the parts common to all scripts
shrink    the search for a smaller kernel that fails the same
same      whether two failures are the same
"""
