"""Tiled matrix product with a fused activation."""

from .api import matmul as matmul
from .reference import matmul_reference as matmul_reference
from .specs import SPECS as SPECS
