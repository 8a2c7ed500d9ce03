"""Which requests share a buffer: policies of one signature, (sizes in bytes, ...) -> consecutive runs of requests."""

from fusionctl.fusion.threshold import fuse, runs

__all__ = ["fuse", "runs"]
