"""The dump directory: writing it, reading it, and reading libtpu's own raw dumps.

Floor 1: imports `model`, `errors` and `ir`, never jax, so that a dump copied from a TPU host is
read on any machine. The format is documented in `docs/reference/dump-format.md`.
"""

from pallas_debug.store.reader import DumpReader as DumpReader
from pallas_debug.store.reader import StoredCompilation as StoredCompilation
from pallas_debug.store.reader import StoredKernel as StoredKernel
from pallas_debug.store.reader import open_dumps as open_dumps
from pallas_debug.store.writer import Store as Store
