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
_INTERPRETER = "jax._src.pallas.mosaic.interpret.interpret_pallas_call"
_MEMORY = "jax._src.pallas.mosaic.interpret.shared_memory:SharedMemory"
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
        _INTERPRETER: {
            "interpret_pallas_call": "interpret_params grid_mapping compiler_params out_avals",
        },
        _CORE: {"BlockMapping": "index_map_out_tree"},
    },
    patches.TPU_MODE: {
        _INTERPRETER: {
            "_initialize_shared_memory": "token device_id num_devices",
            "_allocate_buffer": "token device_id local_core_id memory_space val",
            "_deallocate_buffer": "token device_id local_core_id memory_space buffer_id",
            "_allocate_semaphores": "token device_id local_core_id shape",
            "get": "device_id buffer_id transforms block_indices grid_loop_idx input_name",
            "store": "device_id buffer_id transforms grid_loop_idx output_name",
            "swap": "device_id local_core_id buffer_id transforms val",
            "dma_start": "src_local_core_id src_id src_transforms dst_id dst_sem_id",
            "dma_wait": "device_id local_core_id sem_id size",
            "semaphore_signal": "sem_id inc target_device_id target_local_core_id",
            "semaphore_wait": "device_id local_core_id sem_id value",
            "_check_for_revisiting": "device_id local_core_id loop_idx output_blocks",
            "_barrier": "token device_id",
            "_validate": "token device_id",
            "fail_on_exception": "func",
            "_get_shared_memory": "",
            "reset_tpu_interpret_mode_state": "",
        },
        _MEMORY: {
            "get_global_core_id": "device_id local_core_id",
            "get_global_core_ids": "device_id",
        },
        "jax._src.dispatch:RuntimeTokenSet": {"block_until_ready": "", "clear": ""},
    },
    patches.PRETEND: {
        "jax._src.xla_bridge": {"get_backend": "platform", "local_devices": "backend"},
        "jax._src.xla_bridge:xla_client": {"Device": ""},
        "jax._src.xla_bridge:default_backend": {"__code__": ""},
    },
    patches.TPU_EXTENSIONS: {
        _INTERPRETER: {
            "fail_on_exception": "func",
            "_get_shared_memory": "",
            "_get_memory_space_and_raise_if_hbm": "aval primitive_name",
            "_local_core_id_or_zero_if_hbm": "local_core_id memory_space",
        },
        _MEMORY: {
            "get_buffer_content": "key rnge",
            "get_global_core_id": "device_id local_core_id",
            "get_semaphores_and_increment_clock": "sem_ids global_core_id",
        },
        "jax._src.pallas.mosaic.primitives": {"_dma_flatten": ""},
        "jax._src.state.discharge": {"transform_array": "transforms"},
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
