"""Tiled matrix product with a fused activation."""

from .kernel import matmul as matmul
from .specs import SPECS as SPECS
from .specs import matmul_reference as matmul_reference
