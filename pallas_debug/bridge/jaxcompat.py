"""The door to jax: every private name of jax and jaxlib that we use, and every version branch.

Other modules import the objects below in place of modules of jax, and use the listed names as
their attributes: `jax_core.Jaxpr`. A module of jax is imported at the first use of one of its
names, so that the compiler's worker imports jaxlib alone.

A name that the installed jax does not have becomes a class without instances: no value is of that
type, no equation has it as its primitive, so rows of tables and tests for it are without effect. A
call of it raises `IncompatibleJaxError`, which says what is missing. `missing` lists these names;
`pallas-debug doctor` prints them.

A name that only some versions have is written as `name[0.12-]` (since jax 0.12) or `name[-0.11]`.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from pallas_debug.bridge import versions
from pallas_debug.errors import IncompatibleJaxError

_NAME = re.compile(r"(?P<name>\w+)(\[(?P<first>[\d.]*)-(?P<last>[\d.]*)\])?")


class _Missing(type):
    """Type of the stand-ins for names that the installed jax does not have."""

    def __call__(cls, *_: object, **__: object) -> NoReturn:
        raise IncompatibleJaxError(
            f"jax {versions.installed().get('jax')} has no `{cls.__name__}`, which this needs. "
            "`pallas-debug doctor` lists what this jax lacks"
        )

    def __getattr__(cls, name: str) -> NoReturn:
        raise AttributeError(f"{cls.__name__}.{name}: this jax has no {cls.__name__}")


class Internal:
    """A module of jax or jaxlib, imported at first use.

    Attributes:
      paths: names of the module in different versions; the first that exists is used.
      names: names that are used, with the versions that have them.
    """

    def __init__(self, *paths: str, names: str) -> None:
        self.paths = paths
        self.names = {m["name"]: (m["first"], m["last"]) for m in _NAME.finditer(names)}
        _internals.append(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__file__":
            raise AttributeError(name)
        module = self._module()
        found = getattr(module, name, None)
        if found is None:
            found = _Missing(f"{self.paths[0]}.{name}", (), {})
        if isinstance(found, type):  # a function may be replaced by a patch, a class is not
            vars(self)[name] = found
        return found

    def _module(self) -> Any:
        for path in self.paths:
            try:
                return importlib.import_module(path)
            except ModuleNotFoundError as error:
                if not (error.name or "").startswith("jax"):
                    raise  # of a package that jax needs for this module alone, such as absl
        return None

    @property
    def loaded(self) -> Any:
        """The module, if anything has imported it."""
        return next((sys.modules[path] for path in self.paths if path in sys.modules), None)

    def expected(self) -> Iterator[str]:
        """Names that the installed version should have."""
        for name, (first, last) in self.names.items():
            if versions.is_within(first or "", last or ""):
                yield name


_internals: list[Internal] = []


def missing() -> list[str]:
    """Full names that the installed jax should have, and does not."""
    found = []
    for internal in _internals:
        try:
            module = internal._module()
        except ModuleNotFoundError:
            continue
        except (ImportError, AttributeError) as error:  # it lacks what it needs itself
            found.append(f"{internal.paths[0]} ({error})")
            continue
        found += [
            f"{internal.paths[0]}.{name}"
            for name in internal.expected()
            if getattr(module, name, None) is None
        ]
    return found


def internals() -> Sequence[Internal]:
    """All modules that are used, with their names."""
    return tuple(_internals)


callback_lib: Any = Internal(
    "jax._src.callback",
    names="_callback_op_sharding emit_python_callback",
)
checkify: Any = Internal(
    "jax._src.checkify",
    names="DivisionByZeroError FailedCheckError JaxException NaNError OOBError assert_func "
    "check_p get_traceback",
)
config: Any = Internal(
    "jax._src.config",
    names="mutable_array_checks pallas_tpu_interpret_mode_context_manager",
)
jax_core: Any = Internal(
    "jax._src.core",
    names="ClosedJaxpr[-0.11] DebugInfo Jaxpr Literal NamedAxisEffect Primitive "
    "ShapedArray Tracer Var empty_ref_p eval_jaxpr free_ref_p jaxpr_as_fun "
    "new_jaxpr_eqn physical_aval typeof",
)
debugging: Any = Internal(
    "jax._src.debugging", names="debug_callback_p debug_print_p merge_callback_args"
)
dispatch: Any = Internal("jax._src.dispatch", names="runtime_tokens")
dtypes: Any = Internal("jax._src.dtypes", names="extended issubdtype itemsize_bits")
hardware_utils: Any = Internal(
    "jax._src.hardware_utils", names="num_available_tpu_chips_and_device_id"
)
mlir: Any = Internal(
    "jax._src.interpreters.mlir",
    names="TokenSet lower_fun module_to_bytecode",
)
partial_eval: Any = Internal(
    "jax._src.interpreters.partial_eval", names="dce_jaxpr trace_to_jaxpr_dynamic"
)
conditionals: Any = Internal(
    "jax._src.lax.control_flow.conditionals", names="cond_p platform_index_p"
)
loops: Any = Internal("jax._src.lax.control_flow.loops", names="scan_p while_p")
linear_util: Any = Internal("jax._src.linear_util", names="wrap_init")
mesh_lib: Any = Internal(
    "jax._src.mesh", names="empty_abstract_mesh get_abstract_mesh use_abstract_mesh"
)
pallas_core: Any = Internal(
    "jax._src.pallas.core",
    names="BarrierSemaphore Semaphore semaphore_dtype",
)
mpmd: Any = Internal("jax._src.pallas.mpmd", names="mpmd_map_p")
pallas_call: Any = Internal("jax._src.pallas.pallas_call", names="pallas_call_p")
pallas_primitives: Any = Internal(
    "jax._src.pallas.primitives",
    names="DeviceIdType delay_p get_global_p load_p multiple_of_p num_programs_p program_id_p "
    "run_scoped_p semaphore_read_p semaphore_signal_p semaphore_wait_p swap_p",
)
tpu_core: Any = Internal("jax._src.pallas.mosaic.core", names="CoreType")
error_handling: Any = Internal("jax._src.pallas.mosaic.error_handling", names="VerificationError")
lowering: Any = Internal(
    "jax._src.pallas.mosaic.lowering",
    names="__file__ lowering_rules",
)
tpu_primitives: Any = Internal(
    "jax._src.pallas.mosaic.primitives",
    names="conv_p[0.12-] dma_start_p dma_wait_p get_barrier_semaphore_p "
    "has_memory_space_p[0.12-] join_key_p pack_elementwise_p prng_random_bits_p prng_seed_p "
    "split_key_p stochastic_round_p touch_p trace_value_p unpack_elementwise_p",
)
sc_core: Any = Internal("jax._src.pallas.mosaic.sc_core", names="Indices")
sc_primitives: Any = Internal(
    "jax._src.pallas.mosaic.sc_primitives",
    names="all_reduce_ffs_p all_reduce_population_count_p barrier_p bitcast_p[-0.11] "
    "fetch_and_add_p gather_p load_p masked_cummax_p masked_cummin_p masked_cumsum_p "
    "masked_sort_p pack_p parallel_loop_p scan_count_p scatter_p swap_p unpack_p",
)
gpu_callbacks: Any = Internal(
    "jax._src.pallas.mosaic_gpu.interpret.gpu_callbacks",
    names="reset_gpu_interpret_mode_state",
)
gpu_params: Any = Internal(
    "jax._src.pallas.mosaic_gpu.interpret.params", names="InterpretGPUParams"
)
triton_primitives: Any = Internal(
    "jax._src.pallas.triton.primitives",
    names="atomic_cas_p atomic_rmw_p debug_barrier_p elementwise_inline_asm_p lowering "
    "max_contiguous_p",
)
triton_lowering: Any = Internal("jax._src.pallas.triton.lowering", names="triton_lowering_rules")
triton_dialect: Any = Internal("jaxlib.triton.dialect", names="register_dialect")
prng: Any = Internal("jax._src.random.prng", names="random_bits_p random_fold_in_p random_seed_p")
source_info_util: Any = Internal(
    "jax._src.source_info_util",
    names="SourceInfo _source_info_context current current_name_stack is_user_filename "
    "register_exclusion user_context user_frame user_frames",
)
indexing: Any = Internal("jax._src.state.indexing", names="NDIndexer Slice")
state_primitives: Any = Internal("jax._src.state.primitives", names="addupdate_p get_p swap_p")
state_types: Any = Internal(
    "jax._src.state.types",
    names="BitcastTransform ReshapeTransform SelectTransform TransformedRef TransposeTransform",
)
tpu_info: Any = Internal(
    "jax._src.tpu_info",  # since jax 0.11.1
    "jax._src.pallas.mosaic.tpu_info",
    names="get_tpu_info",
)
util: Any = Internal("jax._src.util", names="fun_name")
xla_bridge: Any = Internal(
    "jax._src.xla_bridge",
    names="backends_are_initialized canonicalize_platform default_backend get_backend "
    "local_devices xla_client",
)
xla_client: Any = Internal(
    "jaxlib.xla_client",
    names="CompileOptions DeviceAssignment DeviceList initialize_pjrt_plugin "
    "load_pjrt_plugin_dynamically make_c_api_device_topology make_cpu_client "
    "make_tfrt_tpu_c_api_device_topology register_custom_call_handler register_custom_call_target "
    "register_custom_type register_custom_type_handler "
    "pjrt_plugin_initialized pjrt_plugin_loaded",
)
mlir_ir: Any = Internal(
    "jaxlib.mlir.ir", names="Context DialectRegistry InsertionPoint MLIRError Module WalkResult"
)


def setting(name: str) -> Any | None:
    """Context manager of a setting of jax; None if this jax has no such setting."""
    return getattr(importlib.import_module("jax._src.config"), name, None)


def load_dialects(context: Any) -> None:
    """Load the dialects of jax's contexts into an MLIR context, without importing jax."""
    libs = "jaxlib.mlir._mlir_libs."
    registry = mlir_ir.DialectRegistry()
    importlib.import_module(f"{libs}_jax_mlir_ext").register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    for dialect in ("_sdy", "_sdyMpmd", "_chlo", "_stablehlo"):
        importlib.import_module(libs + dialect).register_dialect(context)
    importlib.import_module(f"{libs}_mlirHlo").register_mhlo_dialect(context)


# Version branches, each with the versions that need it


def opened(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """Split a jaxpr and its constants: up to jax 0.11 a class of its own holds both."""
    if isinstance(jaxpr, jax_core.Jaxpr):
        return jaxpr, getattr(jaxpr, "consts", ())
    return jaxpr.jaxpr, jaxpr.consts


def closed_as(value: Any, jaxpr: Any) -> Any:
    """Return `jaxpr` in the form of `value`, which up to jax 0.11 may be closed."""
    return jaxpr if isinstance(value, jax_core.Jaxpr) else value.replace(jaxpr=jaxpr)


def with_consts(jaxpr: Any, consts: Sequence[Any]) -> Any:
    """Return a jaxpr that carries its constants, as all do since jax 0.12."""
    return jaxpr.with_consts(consts) if consts and hasattr(jaxpr, "with_consts") else jaxpr


def scan_sizes(params: Mapping[str, Any]) -> tuple[int, int]:
    """Numbers of constants and of carried values of a `scan`; parameters up to jax 0.11."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def is_wait_of_sender(params: Mapping[str, Any]) -> bool:
    """Return whether a wait for a DMA to another device is the sender's; renamed in jax 0.12."""
    return bool(params.get("insert_dummy_device") or params.get("is_wait_send"))


def is_assumption(transform: Any) -> bool:
    """Return whether a transform is the hint of `pltpu.annotate` (since jax 0.12)."""
    return type(transform).__name__ == "AccessAssumptionTransform"


def checks_take_context() -> bool:
    """Return whether rules of `checkify` take a context, which counts errors since jax 0.12."""
    return "ctx" in inspect.signature(checkify.assert_func).parameters


def gpu_interpret_params() -> Any:
    """Class of the parameters of GPU interpret mode.

    Raises:
      ImportError: Mosaic GPU cannot be imported; jax's own lowering ignores this, and runs the
        kernel in HLO interpret mode.
    """
    importlib.import_module("jax.experimental.pallas.mosaic_gpu")
    importlib.import_module("jax._src.pallas.mosaic_gpu.interpret.interpret_pallas_call")
    return gpu_params.InterpretGPUParams


def tensorcore_mesh(axis: str, num_cores: int) -> Any:
    """A mesh of TensorCores, which has a class since jax 0.11."""
    pltpu = importlib.import_module("jax.experimental.pallas.tpu")
    make = getattr(pltpu, "TensorCoreMesh", None) or pltpu.create_tensorcore_mesh
    return make(axis_name=axis, num_cores=num_cores)


def forget_tpu_info() -> None:
    """Clear the cache of `get_tpu_info`, where it has one."""
    clear = getattr(tpu_info.get_tpu_info, "cache_clear", None)
    if clear is not None:
        clear()


# Text in generated scripts

PREFIX = "jax._src."
"""Prefix of jax's private modules, from which scripts bind primitives without a public name."""

COMPILE_A_MODULE = """def compiled(devices):
    # A module that is no function of Python is compiled by jax's internals alone.
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir

    client = devices[0].client
    options = compiler.get_compile_options(
        num_replicas=1,
        num_partitions=NUM_DEVICES,
        device_assignment=np.array([[device.id for device in devices]]),
        env_options_overrides=OPTIONS,
        backend=client,
    )
    options.executable_build_options.use_spmd_partitioning = NUM_DEVICES > 1
    options.executable_build_options.use_shardy_partitioner = NUM_DEVICES > 1
    with mlir.make_ir_context():
        module = ir.Module.parse(lowered())
    return client.compile(module, xla_client.DeviceList(tuple(devices)), options)
"""
"""Compiles a StableHLO module without a Python function; for jax 0.10.2 and later."""
