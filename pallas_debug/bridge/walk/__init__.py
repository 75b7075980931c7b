"""Abstract walk of a kernel's jaxpr over all grid points at once.

`walker.py` goes through the equations, `index_maps.py` puts it to the maps and bodies of a
captured kernel, and `events.py` is what it tells: plain data for `pallas_debug.analysis`.
`prefetch.py` computes the tables that a program hands to its kernels, `names.py` knows what the
installed Pallas has.
"""
