"""Errors, split by whose fault it is: the setting's, this rank's call, the ranks together, a peer's, the MPI's."""


class FusionctlError(RuntimeError):
    """Root of every error that fusionctl raises on purpose."""

    __init__ = Exception.__init__  # AutoGraph raises in its own name what is made otherwise


class ConfigError(FusionctlError, ValueError):
    """An environment variable or an argument of `init` has a value that cannot be used."""


class UsageError(FusionctlError, ValueError):
    """This rank's programme called fusionctl wrongly; the other ranks are not involved."""


class MismatchError(FusionctlError):
    """The ranks submitted a tensor of one name with different metadata; raised on every rank."""


class PeerError(FusionctlError):
    """Another rank left or failed while this one still had tensors to reduce."""


class MPIError(FusionctlError):
    """The MPI library, its thread level or its launcher cannot carry the engine."""
