"""Record profiler traces, and read what they say: where the time goes, which rank is late and why, what would help.

``load`` reads the traces of all ranks; the methods of :class:`Trace` are named as in Holistic Trace Analysis, which
they replace. Tables hold records of the types in ``records``, and become data frames.
``record`` makes traces that hold what all analyses need.
"""

from unisono.trace import _records as records
from unisono.trace._analysis import Table, Trace, diagnose_hang, load, memory_timeline
from unisono.trace._record import record

__all__ = ["Table", "Trace", "diagnose_hang", "load", "memory_timeline", "record", "records"]
