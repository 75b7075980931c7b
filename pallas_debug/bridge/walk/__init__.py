"""Walk a kernel's jaxpr over all its grid points at once, without running it.

`walker.py` visits the equations, `index_maps.py` runs it on the index maps and bodies of a captured
kernel, and `events.py` is its output: plain data for `pallas_debug.analysis`. `prefetch.py`
computes the tables that a program passes to its kernels; `names.py` knows the names of the
installed Pallas.
"""
