"""Correct kernels of the plain sort that people write, one module per topic.

Each equals its reference, and no finding may accuse it. They are here to keep rules out: a rule
that accuses one of them is wrong, and gets no exception for it.
"""

from . import early_exit as early_exit
from . import in_place as in_place
from . import integers as integers
from . import masks as masks
from . import numerics as numerics
from . import partial as partial
from . import pipelines as pipelines
from . import scatter_gather as scatter_gather
from . import streaming as streaming
from . import tables as tables
from . import traversal as traversal
from . import triton as triton
from .record import CORRECT as CORRECT
from .record import CorrectKernel as CorrectKernel
