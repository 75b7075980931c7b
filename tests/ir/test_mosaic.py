"""Types, products, copies and grid indices of Mosaic modules."""

from __future__ import annotations

import pytest

from pallas_debug.ir import mosaic
from pallas_debug.ir.operations import Module

VECTORS = ", ".join(["vector<{}xbf16>", "vector<{}xbf16>", "vector<{}xf32> -> vector<{}xf32>"])
COPY = (
    "tpu.enqueue_dma source(%0 : memref<{}, #tpu.memory_space<vmem>>) "
    "target(%1 : memref<8x128xf32, affine_map<(d0, d1) -> (d0, d1)>, #tpu.memory_space<any>>) "
    "target_semaphore(%2 : memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>){} "
    'loc("k.py":3:0 to :5)'
)


def read(line: str) -> mosaic.MosaicOperation:
    (found,) = mosaic.operations(Module.of(line, "mlir"), mosaic.COPY, mosaic.PRODUCT)
    return found


@pytest.mark.parametrize(
    "numbers, a, b, out, flops",
    [
        ("", "8x128", "128x256", "8x256", 2 * 8 * 128 * 256),
        ("[1], [1], [0], [0], [0, 0, 1, 0], [], []", "8x64", "16x64", "8x16", 2 * 8 * 64 * 16),
        ("[0], [0], [1], [1], [0, 1, 1, 1], [], []", "64x8", "64x16", "8x16", 2 * 8 * 64 * 16),
        (
            "[2], [1], [1], [2], [0, 0, 0, 1, 1, 2], [0], [0]",
            "4x8x64",
            "4x64x16",
            "4x8x16",
            2 * 4 * 8 * 64 * 16,
        ),
        ("[7], [0], [0], [1], [0, 0, 1, 1], [], []", "8x128", "128x256", "8x256", None),
    ],
)
def test_operations_of_a_product_follow_its_dimension_numbers(
    numbers: str, a: str, b: str, out: str, flops: int | None
) -> None:
    attribute = f" {{dimension_numbers = #tpu.dot_dimension_numbers<{numbers}>}}" if numbers else ""
    product = read(f"  %3 = tpu.matmul %0, %1, %2{attribute} : {VECTORS.format(a, b, out, out)}")
    assert product.flops == flops
    assert [t.dtype for t in product.types] == ["bf16", "bf16", "f32", "f32"]
    assert [value.name for value in product.operands] == ["%0", "%1", "%2"]


def test_a_truncated_product_has_no_operations() -> None:
    assert read("  %3 = tpu.matmul %0, %1, %2 : vector<8x128xbf16>, vec").flops is None


def test_dimensions_of_reductions_transposes_and_products() -> None:
    lines = (
        "%1 = vector.multi_reduction <add>, %0, %c [1] : vector<8x128xf32> to vector<8xf32>",
        "%2 = tpu.transpose %0, [1, 0] : vector<8x128xf32> -> vector<128x8xf32>",
        "%3 = vector.load %r[%c, %c] : memref<8x128xf32>, vector<8x128xf32>",
    )
    module = Module.of("\n".join(lines), "mlir")
    found = mosaic.operations(module, "vector.multi_reduction", "tpu.transpose", "vector.load")
    assert [operation.dimensions for operation in found] == [(1,), (1, 0), ()]
    numbers = "{d = #tpu.dot_dimension_numbers<[1], [0], [0], [1], [0, 0, 1, 1], [], []>}"
    assert read(f"%3 = tpu.matmul %0, %1, %2 {numbers} : ").dimension_numbers == (
        *((1,), (0,), (0,), (1,), (0, 0, 1, 1)),
        (),
        (),
    )


@pytest.mark.parametrize(
    "shape, size",
    [
        ("8x128xf32", 4096),
        ("3x!tpu.dma_semaphore", None),
        ("?x128xf32", None),
        ("f32", 4),
        ("5xi4", 3),
        ("8x128xf8E4M3FN", 1024),
    ],
)
def test_size_of_a_copy(shape: str, size: int | None) -> None:
    copy = read(COPY.format(shape, ""))
    (source,) = copy.group("source") or ()
    assert (source.bytes, copy.is_remote) == (size, False)
    assert [t.shape for t in copy.group("target") or ()] == [(8, 128)]
    assert copy.group("source_semaphore") is None


def test_a_copy_with_a_device_is_remote() -> None:
    assert read(COPY.format("8x128xf32", " device_id(%3)")).is_remote


KERNEL = """\
module {
  func.func @"k\\22" (%arg0: i32 loc(unknown), %arg1: i32, %arg2: memref<8x128xf32>) attributes {x} {
    %c0_i32 = arith.constant 0 : i32
    %0 = arith.cmpi eq, %arg1, %c0_i32 : i32
    return
  }
  func.func @transform_0(%arg0: i32, %arg1: i32) -> (i32, i32) {
    return %arg0, %arg1 : i32, i32
  }
}
"""


def test_name_of_the_first_function() -> None:
    assert mosaic.function_name(KERNEL) == 'k"'
    assert mosaic.function_name("module {") is None
