"""How messages travel between sites and their home: one small interface, interchangeable implementations.

A transport carries opaque bytes. It knows nothing of models, labels or what a round is for.
"""

from ce.transport.inprocess import InProcess
from ce.transport.interface import Transport

__all__ = ["InProcess", "Transport"]
