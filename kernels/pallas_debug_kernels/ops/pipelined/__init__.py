"""Copy and matrix product with DMAs overlapped with compute, by hand and by `emit_pipeline`."""

from .api import dma_copy as dma_copy
from .api import dma_matmul as dma_matmul
from .api import pipelined_copy as pipelined_copy
from .api import pipelined_matmul as pipelined_matmul
from .reference import copy_reference as copy_reference
from .reference import matmul_reference as matmul_reference
from .specs import COPY_SPECS as COPY_SPECS
from .specs import MATMUL_SPECS as MATMUL_SPECS
