"""Checks of running kernels: which there are, and what their failures mean.

Floor 2, above `bridge/`, which puts the checks into kernels and brings back what they say.
"""
