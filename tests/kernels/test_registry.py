"""Lookups in the registry, and the guarantees of specs."""

import pytest
from pallas_debug_kernels import BundledOperation, operation, operations
from pallas_debug_kernels.spec import TAGS

NAMES = [
    "vector_add",
    "softmax",
    "layer_norm",
    "matmul",
    "dma_copy",
    "flash_attention",
    "splash_attention",
    "paged_attention",
    "all_gather",
]


def test_operations_are_found_by_name() -> None:
    assert [op.name for op in operations()] == NAMES
    for op in operations():
        assert operation(op.name) is op


@pytest.mark.parametrize("op", operations(), ids=lambda op: op.name)
def test_specs_of_an_operation(op: BundledOperation) -> None:
    names = [spec.name for spec in op.specs]
    assert len(names) == len(set(names))
    assert [op.spec(name) for name in names] == list(op.specs)
    for tag in TAGS:
        assert op.tagged(tag), f"{op.name} has no spec tagged {tag}"
    assert op.tagged(*TAGS) == op.specs
    assert op.tagged() == ()
    assert op.summary.endswith(".")
    assert op.function.__doc__
    for spec in op.specs:
        assert set(spec.tags) <= set(TAGS)
        assert set(spec.not_on) <= {"v4", "v5e", "v5p", "v6e", "tpu7x"}
        assert set(spec.values) <= set(range(len(spec.args)))
        assert set(op.differentiable) <= set(range(len(spec.args)))
