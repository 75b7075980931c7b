"""Checks of running kernels: parsing their names, and findings from their failures.

Floor 2, above `bridge/`, which puts the checks into kernels and brings back what they say.
"""
