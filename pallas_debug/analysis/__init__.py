"""Static analysis of a captured kernel, before it runs.

`analyze` evaluates the index maps over the whole grid, checks blocks against the tile sizes and the
memory of each target, and works out what the jaxpr does at which grid points. Findings are exact:
what cannot be decided for certain is listed in `gaps`. This package knows nothing of jax;
`bridge` reads the kernel for it.
"""

from pallas_debug.analysis.analyze import TIME_LIMIT as TIME_LIMIT
from pallas_debug.analysis.analyze import Analysis as Analysis
from pallas_debug.analysis.analyze import analyze as analyze
from pallas_debug.analysis.memory import MemoryPart as MemoryPart
from pallas_debug.analysis.memory import MemoryUse as MemoryUse
