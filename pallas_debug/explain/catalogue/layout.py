"""Shapes and vector layouts that the Mosaic compiler cannot produce."""

from __future__ import annotations

from pallas_debug.explain.catalogue.record import JAX, PALLAS, entry

DETAILS = PALLAS + "tpu/details.html"

ENTRIES = (
    entry(
        "shape-cast",
        "unsupported shape cast",
        title="a reshape that moves elements across tiles",
        cause="a reshape is free if it keeps whole tiles; this one splits or merges the last two "
        "dimensions, or turns a vector into a column, which the compiler does not support",
        advice="keep the last dimension, or split and merge it in multiples of 128; keep "
        "dimensions of 1 (keepdims=True) instead of adding them later; build masks with "
        "jax.lax.broadcasted_iota in two dimensions",
        kinds=("UnsupportedShapeCast",),
        links=(DETAILS, JAX + "21999", JAX + "37370"),
    ),
    entry(
        "mask-reshape",
        "non-noop i1 reshape is unsupported",
        kind="UnsupportedShapeCast",
        title="a row of booleans is reshaped, for example to a column",
        cause="booleans are packed in mask registers, whose lanes the compiler cannot move, as "
        "m[:, None] and m.reshape(…) would require",
        advice="build the mask in two dimensions with jax.lax.broadcasted_iota, or turn int32 or "
        "float32 values into a column before comparing them",
        versions="libtpu 0.0.52; 0.0.42 has `unsupported shape cast`, 0.0.50 aborts",
        links=(JAX + "37370",),
    ),
    entry(
        "relayout",
        "Invalid relayout:",
        "Unsupported layout change for",
        "Non-trivial layouts unsupported",
        kind="UnsupportedLayout",
        title="a value is needed in a layout to which it cannot be converted",
        cause="two operations need the same value in different register layouts, and the compiler "
        "cannot convert one to the other; this mostly affects booleans, 8-bit integers and "
        "one-dimensional values",
        advice="compute masks in 32 bits (x.astype(jnp.int32) > 0), keep intermediate values "
        "two-dimensional, and broadcast before, not after, the comparison",
        links=(DETAILS, JAX + "36970", JAX + "22204", JAX + "24415"),
    ),
    entry(
        "sublane-gather",
        "Sublane gather not supported by this TPU generation",
        kind="UnsupportedLayout",
        title="v4 cannot move elements between the sublanes of a register this way",
        cause="a reduction over lanes, a broadcast or a transposition needs moves between "
        "sublanes, which were added in v5",
        advice="keep the reduced dimension (keepdims=True), so that the value stays a column",
        targets=("v4",),
    ),
    entry(
        "strided-roll",
        "rotation dimension is the minor most when stride dimension is the second minor most",
        "stride dimension is the minor most",
        "target().SupportsVectorRotateLaneStride",
        kind="UnsupportedLayout",
        title="a roll whose shift differs from row to row",
        cause="from v5 on, a TPU rolls each row along the last dimension by a further stride; v4 "
        "does not, and no chip rolls columns by a stride",
        advice="roll along the last dimension with stride_axis the one before it, on v5 or later; "
        "elsewhere, add up rolls by the bits of the shift, each selected with jnp.where",
    ),
    entry(
        "operation-layout",
        "Invalid input layout",
        "Reshape should have supported layout before reaching the emitter",
        kind="UnsupportedLayout",
        title="an operation does not support the layout of its operand",
        cause="the operation works on whole two-dimensional tiles, and one operand is "
        "one-dimensional, padded or replicated",
        advice="give the operation operands of two or more dimensions whose last two are "
        "multiples of 8 and 128; v[None, :] before it and [0] after it are often enough",
        links=(DETAILS, JAX + "34001", JAX + "22121"),
        ambiguous=True,
    ),
    entry(
        "transpose",
        "Padded transposes unsupported",
        "Unsupported type in transpose",
        kind="UnsupportedLayout",
        title="a transposition of a padded matrix or of a narrow dtype",
        cause="older compilers transpose only whole 32-bit tiles",
        advice="pad both dimensions to 128, transpose as float32 or int32, or contract the other "
        "dimension in lax.dot_general instead of transposing",
        versions="libtpu of 2023 to 2025: 0.0.11 reports it for int8, 0.0.17 transposes it",
        links=(JAX + "18370", JAX + "29278"),
    ),
    entry(
        "load-type",
        "Invalid vector type for load",
        "Invalid vector type for store",
        title="a TPU cannot load or store vectors of this dtype",
        cause="vector registers cannot hold the dtype; usually it is float16, which no TPU "
        "supports",
        advice="use bfloat16 or float32, and cast before the call, not in the kernel; or pass the "
        "bits as int16 (jax.lax.bitcast_convert_type)",
        kinds=("UnsupportedDtype",),
    ),
    entry(
        "strided-load",
        "Strided load with non 32-bit data",
        kind="UnsupportedDtype",
        title="a strided load of a narrow dtype",
        cause="several narrow elements share a 32-bit word, and older compilers cannot select "
        "every second row of them",
        advice="load all rows and select some, or keep the operand in 32 bits",
        versions="libtpu 0.0.42; 0.0.50 compiles it",
    ),
    entry(
        "strided-rows",
        "The last dim size is not 128 in original base memref",
        title="every second row of a reference that is not 128 wide",
        cause="rows can be loaded and stored with a stride only if the memory is 128 columns wide",
        advice="load all rows and select some, as in ref[...].reshape(rows // 2, 2, columns)[:, "
        "0]; or keep the data in references of 128 columns",
        kind="UnsupportedLayout",
        links=(JAX + "29520",),
    ),
    entry(
        "strided-value",
        "'vector.extract_strided_slice' op expected strides to be confined to [1, 2)",
        title="a value, rather than a reference, is sliced with a step",
        cause="jax has no lowering for a slice of a value that skips rows or lanes; only loads "
        "from a reference can skip rows",
        advice="skip rows while loading, x_ref[::2], or reshape the value, x.reshape(rows // 2, "
        "2, columns)[:, 0]; for lanes, multiply by a selection matrix",
        kind="InvalidOperation",
    ),
    entry(
        "lane-stride",
        "Stride on last dim is not 1",
        title="a strided access along the last dimension",
        cause="the lanes of a register are loaded and stored contiguously; only rows can be "
        "skipped",
        advice="move the strided dimension before the last one, or multiply by a selection matrix",
        kind="UnsupportedLayout",
        ambiguous=True,
    ),
    entry(
        "narrow-scalar",
        "Only 32-bit types supported",
        "Only 32-bit scalar vector.extracts supported",
        "Row shifts for multi-row values",
        title="a single element or row is extracted from a vector of a narrow dtype",
        cause="elements of 16 and 8 bits share a 32-bit word with their neighbours",
        advice="cast to float32 or int32 before extracting the element",
        versions="libtpu of 2024 and 2025: 0.0.17 still reports it, 0.0.42 does not",
        links=(JAX + "29002", JAX + "22631"),
        ambiguous=True,
    ),
)
