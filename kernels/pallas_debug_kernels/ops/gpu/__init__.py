"""Kernels for GPUs. They run on no TPU, and are therefore not among the `operations()`."""

from .matmul import hopper_matmul as hopper_matmul
from .softmax import triton_softmax as triton_softmax
