"""Abstract walk of a kernel's jaxpr over all grid points at once.

`walker.py` goes through the equations, `index_maps.py` applies it to the maps and bodies of a
captured kernel, and `events.py` defines its result: plain data for `pallas_debug.analysis`.
`prefetch.py` computes the tables that a program passes to its kernels.
"""
