"""`fusionctl.keras.callbacks` under the name where users of Horovod look for it."""

from fusionctl.keras.callbacks import *  # noqa: F403
from fusionctl.keras.callbacks import __all__ as __all__
