"""Arguments of a function, from `--arg` texts, from files, or from another function.

Above `bridge/`, which creates jax arrays. `grammar.py` parses texts, `contents.py` creates the
values of arrays with numpy, and `files.py` reads them; these three do not import jax.
"""

from pallas_debug.inputs.arguments import from_function as from_function
from pallas_debug.inputs.arguments import parse as parse

__all__ = ["from_function", "parse"]
