"""Every name of jax and numpy that a program may use. Text only: it imports nothing.

Both the unparser and the reader of programs (`reproduce/grammar.py`) use this table; other names
are neither written nor accepted. No entry takes a path, opens a file, calls back into Python with
values, or holds a module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

IMPORTS: Mapping[str, tuple[str | None, str, str | None]] = {
    "jax": (None, "jax", None),
    "jnp": (None, "jax.numpy", "jnp"),
    "np": (None, "numpy", "np"),
    "lax": ("jax", "lax", None),
    "pl": ("jax.experimental", "pallas", "pl"),
    "pltpu": ("jax.experimental.pallas", "tpu", "pltpu"),
}
"""Imports by bound name: the module after `from`, the name, and the alias after `as`."""

CHECKIFY = "jax.experimental.checkify"

_ALL_REDUCTIONS = ("sum", "max", "min", "prod", "and", "or")
_MEMORY_SPACES = ("VMEM", "SMEM", "HBM", "ANY", "SEMAPHORE", "CMEM", "VMEM_SHARED", "HOST")


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+", text))


ELEMENTWISE = frozenset(
    _words(
        """
        abs acos acosh asin asinh atan atan2 atanh cbrt ceil clamp clz conj cos cosh erf erf_inv
        erfc exp exp2 expm1 floor imag is_finite log log1p logistic max min nextafter
        population_count pow real rem rsqrt select_n shift_left shift_right_arithmetic
        shift_right_logical sign sin sinh sqrt square tan tanh add sub mul div lt le gt ge eq ne neg
        """
    )
)
"""Primitives with a function in `lax` that takes only their operands."""

_FUNCTIONS = {
    "jax.ShapeDtypeStruct": "",
    "jax.ref.swap": "",
    "jax.ref.addupdate": "",
    f"{CHECKIFY}.check": "",
    "jnp.zeros": "",
    "np.array": "",
    **dict.fromkeys((f"lax.{name}" for name in ELEMENTWISE), ""),
    **dict.fromkeys((f"lax.reduce_{name}" for name in _ALL_REDUCTIONS), ""),
    **dict.fromkeys((f"lax.cum{name}" for name in ("sum", "max", "min", "prod")), "axis reverse"),
    "lax.axis_index": "",
    "lax.bitcast_convert_type": "",
    "lax.broadcast_in_dim": "",
    "lax.broadcasted_iota": "",
    "lax.concatenate": "",
    "lax.cond": "",
    "lax.convert_element_type": "",
    "lax.dot_general": "precision preferred_element_type",
    "lax.fori_loop": "unroll",
    "lax.integer_pow": "",
    "lax.reshape": "",
    "lax.rev": "",
    "lax.scan": "length reverse unroll",
    "lax.slice": "",
    "lax.squeeze": "",
    "lax.switch": "",
    "lax.tile": "",
    "lax.transpose": "",
    "lax.while_loop": "",
    "pl.BlockSpec": "memory_space pipeline_mode",
    "pl.debug_check": "",
    "pl.debug_print": "",
    "pl.delay": "",
    "pl.ds": "",
    "pl.multiple_of": "",
    "pl.num_programs": "",
    "pl.pallas_call": "grid_spec out_shape name input_output_aliases compiler_params cost_estimate "
    "metadata",
    "pl.program_id": "",
    "pl.run_scoped": "collective_axes",
    "pl.semaphore_read": "",
    "pl.semaphore_signal": "device_id device_id_type core_index",
    "pl.semaphore_wait": "decrement",
    "pltpu.PrefetchScalarGridSpec": "num_scalar_prefetch grid in_specs out_specs scratch_shapes",
    "pltpu.get_barrier_semaphore": "",
    "pltpu.make_async_copy": "",
    "pltpu.make_async_remote_copy": "device_id device_id_type",
    "pltpu.prng_random_bits": "",
    "pltpu.prng_seed": "",
    "pltpu.roll": "axis stride stride_axis",
    **{f"{module}.{space}": "" for module in ("pl", "pltpu") for space in _MEMORY_SPACES},
    **{f"pltpu.SemaphoreType.{kind}": "" for kind in ("REGULAR", "DMA", "BARRIER")},
    **dict.fromkeys(
        (
            f"np.{name}"
            for name in _words(
                "bool_ float16 float32 float64 complex64 complex128 int8 int16 int32 int64 "
                "uint8 uint16 uint32 uint64"
            )
        ),
        "",
    ),
}

CALLS: Mapping[str, frozenset[str]] = {
    path: frozenset(keywords.split()) for path, keywords in _FUNCTIONS.items()
}
"""Functions that a program may call, and their allowed keyword arguments."""

RECORDS = frozenset(
    (
        *(f"lax.{kind}DimensionNumbers" for kind in ("Conv", "Gather", "Scatter", "RaggedDot")),
        "lax.DotAlgorithm",
        *(f"pl.{kind}" for kind in ("Blocked", "BoundedSlice", "Buffered", "CostEstimate")),
        *(f"pl.{kind}" for kind in ("Element", "Indirect", "Squeezed")),
        "pltpu.CompilerParams",
    )
)
"""Plain data classes, which accept any field by name."""

FLAGS_OF = {"pltpu.CompilerParams": "flags"}
"""Record fields that hold flags of libtpu, and are checked as such."""

ENUMS = frozenset(
    (
        *(f"lax.{kind}" for kind in ("AccuracyMode", "DotAlgorithmPreset", "FftType", "Precision")),
        *(f"lax.{kind}" for kind in ("GatherScatterMode", "RandomAlgorithm", "RoundingMethod")),
        *(f"pl.{kind}" for kind in ("DeviceIdType", "RevisitMode")),
        *(f"pltpu.{kind}" for kind in ("CoreType", "GridDimensionSemantics", "SemaphoreType")),
        *(f"pltpu.{kind}" for kind in ("SideEffectType", "Tiling")),
    )
)
"""Enumerations, whose members a program may name."""

_MEMBER = re.compile(r"[A-Z][A-Z0-9_]*")

_DTYPES = _words(
    """
    bool_ int2 int4 int8 int16 int32 int64 uint2 uint4 uint8 uint16 uint32 uint64
    bfloat16 float16 float32 float64 complex64 complex128
    float4_e2m1fn float6_e2m3fn float6_e3m2fn float8_e3m4 float8_e4m3 float8_e4m3b11fnuz
    float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu
    """
)

CONSTANTS = frozenset(
    (
        "jnp.inf",
        "jnp.nan",
        *(f"jnp.{name}" for name in _DTYPES),
        *(f"{module}.{space}" for module in ("pl", "pltpu") for space in _MEMORY_SPACES),
    )
)
"""Values that a program may name without calling them, besides members of `ENUMS`."""

REF_METHODS = frozenset(("bitcast", "reshape", "transpose"))
"""Methods of a ref that change its view, besides indexing its `at`."""

COPY_METHODS: Mapping[str, frozenset[str]] = {
    "start": frozenset(("priority", "add")),
    "wait": frozenset(),
    "wait_send": frozenset(),
    "wait_recv": frozenset(),
}
"""Methods of a copy description, and their keyword arguments."""

COPIES = frozenset(("pltpu.make_async_copy", "pltpu.make_async_remote_copy"))

_LAX_PRIMITIVES = _words(
    """
    abs acos acosh add all_gather all_to_all and approx_top_k argmax argmin asin asinh atan atan2
    atanh axis_index bessel_i0e bessel_i1e bitcast_convert_type broadcast_in_dim cbrt ceil clamp clz
    complex concatenate conj conv_general_dilated convert_element_type copy cos cosh cumlogsumexp
    cummax cummin cumprod cumsum digamma div dot_general dynamic_slice dynamic_update_slice eq eq_to
    erf erf_inv erfc exp exp2 expm1 fft floor gather ge gt igamma igamma_grad_a igammac imag
    integer_pow iota is_finite le le_to lgamma log log1p log2 logistic lt lt_to max min mul mulhi ne
    neg nextafter not one_minus_square optimization_barrier or pad pmax pmin polygamma polynomial
    population_count pow ppermute psum ragged_all_to_all real reduce_and reduce_max reduce_min
    reduce_or reduce_precision reduce_prod reduce_sum reduce_window_max reduce_window_min
    reduce_window_sum reduce_xor regularized_incomplete_beta rem reshape rev rng_bit_generator
    rng_uniform round rsqrt scatter scatter_add scatter_max scatter_min scatter_mul scatter_sub
    select_and_gather_add select_n shift_left shift_right_arithmetic shift_right_logical sign sin
    sinh slice sort split sqrt square squeeze stack stop_gradient sub tan tanh tile top_k transpose
    unstack xor zeta
    """
)

_LINALG = _words(
    """
    cholesky cholesky_update eig eigh geqrf hessenberg householder_product lu
    lu_pivots_to_permutation qr schur svd symmetric_product triangular_solve tridiagonal
    tridiagonal_solve
    """
)
_PARALLEL = _words("all_gather_invariant pbroadcast psum_invariant reduce_scatter")
_MOSAIC = _words(
    """
    bitcast conv join_key matmul_acc_lhs matmul_lhs_fifo matmul_pop matmul_pop_fifo matmul_push_rhs
    pack_elementwise prng_random_bits prng_seed roll split_key stochastic_round touch trace_value
    unpack_elementwise
    """
)
_PALLAS = _words("delay multiple_of num_programs program_id reciprocal semaphore_read")

_PRIVATE: Mapping[str, tuple[str, ...]] = {
    "jax._src.lax.lax": _words("empty empty2 ragged_dot_general tie"),
    "jax._src.lax.linalg": _LINALG,
    "jax._src.lax.parallel": _PARALLEL,
    "jax._src.ad_util": ("add_jaxvals",),
    "jax._src.core": _words("pvary reduced_vary_cast"),
    "jax._src.pallas.core": ("with_memory_space_constraint",),
    "jax._src.pallas.einshape": ("einshape_lo",),
    "jax._src.pallas.mosaic.primitives": _MOSAIC,
    "jax._src.pallas.primitives": _PALLAS,
    "jax._src.state.primitives": _words("broadcast_to with_memory_space_constraint"),
    "jax._src.random.threefry2x32": ("threefry2x32",),
}
"""Private modules of jax with primitives that lack a public name, and these primitives."""

PRIMITIVES = frozenset(
    (
        *(f"lax.{name}_p" for name in _LAX_PRIMITIVES),
        *(f"{module}.{name}_p" for module, names in _PRIVATE.items() for name in names),
    )
)
"""Primitives that may be bound by name. They compute, and hold no function."""

MODULES = frozenset((*_PRIVATE, CHECKIFY))
"""Modules that a program may import besides `IMPORTS`, by full name."""

ARGUMENTS, AXES, ENABLE_X64, CALL = "ARGUMENTS", "AXES", "ENABLE_X64", "call"
"""Names that each program defines."""

SCRIPT = frozenset(
    _words(
        """
        TOPOLOGY DEVICE_KIND NUM_CORES NUM_DEVICES SETTINGS OPTIONS FLAGS MODULE
        base64 zlib compile_only compiled failed lowered main
        Exception SystemExit list print tuple type zip
        """
    )
)
"""Names of the script around a program, which a program must not define."""

RESERVED = frozenset((*IMPORTS, *SCRIPT, ARGUMENTS, AXES, ENABLE_X64, CALL, "args", "program"))
"""Names that no function, operand or value of a kernel may have."""


def is_constant(path: str) -> bool:
    kind, _, member = path.rpartition(".")
    return path in CONSTANTS or (kind in ENUMS and _MEMBER.fullmatch(member) is not None)
