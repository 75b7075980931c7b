"""`pallas_debug.search` and `pallas_debug.arguments`, which need hypothesis."""

from pallas_debug.errors import UsageError

try:
    from pallas_debug.searches.search import INTERRUPTED as INTERRUPTED
    from pallas_debug.searches.search import arguments_of as arguments
    from pallas_debug.searches.search import search as search
except ModuleNotFoundError as error:
    if error.name not in ("hypothesis", "platformdirs"):
        raise
    raise UsageError(
        f"a search needs {error.name}, which is not installed: pip install 'pallas-debug[search]'"
    ) from error

__all__ = ["arguments", "search"]
