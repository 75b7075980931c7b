"""Self-test: comparison of the internals that pallas-debug patches or uses with the installed jax.

Runs when a session is first used and in `pallas-debug doctor`, so that a moved internal is reported
in a sentence rather than by an AttributeError.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from pallas_debug.bridge import patches, versions
from pallas_debug.errors import IncompatibleJaxError

_BLOCKS = "capture: grid and blocks"
_CORE = "jax._src.pallas.core"

_USED: dict[str, dict[str, dict[str, str]]] = {
    _BLOCKS: {
        _CORE: {
            "GridMapping": "grid grid_names block_mappings num_index_operands num_inputs",
            "BlockMapping": "block_shape index_map_jaxpr array_aval transformed_block_aval",
        },
    },
    patches.MODES: {
        "jax._src.config:pallas_tpu_interpret_mode_context_manager": {
            "get_global": "",
            "set_global": "",
        },
        "jax._src.dispatch:runtime_tokens": {"clear": ""},
        "jax._src.pallas.mosaic.interpret.interpret_pallas_call": {
            "reset_tpu_interpret_mode_state": "",
        },
    },
    patches.PRETEND: {
        "jax._src.xla_bridge": {"get_backend": "platform", "local_devices": "backend"},
        "jax._src.xla_bridge:xla_client": {"Device": ""},
        "jax._src.xla_bridge:default_backend": {"__code__": ""},
    },
    patches.MOSAIC: {
        "jax._src.pallas.mosaic.lowering": {
            "_debug_print_rule": "fmt ordered in_tree static_args has_placeholders",
        },
    },
}
"""Names used, by area and owner, with the parameters that are relied on."""

AREAS = tuple(dict.fromkeys([*(patch.area for patch in patches.TABLE), *_USED]))


def _problems(area: str) -> Iterator[str | None]:
    yield patches.problem(area)
    for owner, names in _USED.get(area, {}).items():
        for name, parameters in names.items():
            yield patches.problem_with(owner, name, tuple(parameters.split()))


@functools.cache
def results() -> dict[str, str | None]:
    """Return for each area how the installed jax does not fit, or None."""
    found: dict[str, str | None] = {}
    for area in AREAS:
        try:
            found[area] = next((p for p in _problems(area) if p is not None), None)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            found[area] = f"{type(error).__name__}: {error}"
    return found


def require() -> None:
    """Check that the installed jax fits.

    Raises:
      IncompatibleJaxError: it does not; the message says how.
    """
    bad = {name: why for name, why in results().items() if why is not None}
    if bad:
        jax = versions.installed().get("jax", "none")
        listed = "; ".join(f"{name} ({why})" for name, why in bad.items())
        raise IncompatibleJaxError(
            f"jax {jax} is not one that this pallas-debug can hook into: {listed}. "
            f"Upgrade pallas-debug, or install a supported jax version, from {versions.OLDEST} on."
        )
