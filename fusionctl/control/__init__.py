"""The control plane as pure objects: nothing in this package communicates or sleeps."""

from fusionctl.control.cache import ResponseCache
from fusionctl.control.negotiation import Negotiation, Settlement, digest
from fusionctl.control.protocol import Control, Hooks
from fusionctl.control.stall import RankState

__all__ = ["Control", "Hooks", "Negotiation", "RankState", "ResponseCache", "Settlement", "digest"]
