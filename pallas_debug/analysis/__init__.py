"""Static analysis of a captured kernel: what is wrong, before anything runs.

`analyze` reads a captured kernel: its index maps over the whole grid, its blocks against the tiles
and the memory of the targets, and what its jaxpr does at which grid points. Findings are exact:
what cannot be known for sure is not judged, and said by name. This room knows nothing of jax; what
it sees of a kernel comes from `bridge`.
"""

from pallas_debug.analysis.analyze import TIME_LIMIT as TIME_LIMIT
from pallas_debug.analysis.analyze import Analysis as Analysis
from pallas_debug.analysis.analyze import analyze as analyze
from pallas_debug.analysis.memory import MemoryPart as MemoryPart
from pallas_debug.analysis.memory import MemoryUse as MemoryUse
