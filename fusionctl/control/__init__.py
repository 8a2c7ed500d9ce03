"""The control plane as pure objects: nothing in this package communicates or sleeps."""

from fusionctl.control.cache import ResponseCache
from fusionctl.control.negotiation import Negotiation, Settlement
from fusionctl.control.protocol import Control

__all__ = ["Control", "Negotiation", "ResponseCache", "Settlement"]
