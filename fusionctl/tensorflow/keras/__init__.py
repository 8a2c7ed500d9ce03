"""`fusionctl.keras` under the name where users of Horovod look for it."""

from fusionctl.keras import *  # noqa: F403
from fusionctl.keras import __all__ as __all__
