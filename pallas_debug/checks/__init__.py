"""Runtime checks of kernels: parsing check names, and turning failures into findings.

Floor 2, above `bridge/`, which inserts the checks into kernels and returns their results.
"""
