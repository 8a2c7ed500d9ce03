"""Where this rank stands among the nodes, and what the library was built with, by Horovod's names."""

from __future__ import annotations

from fusionctl import runtime


def cross_rank() -> int:
    """This process's place among the ranks of the same local rank, one on each node."""
    return runtime.current().place.cross_rank


def cross_size() -> int:
    """Number of nodes that have a rank of this local rank."""
    return runtime.current().place.cross_size


def is_homogeneous() -> bool:
    """Whether all nodes have as many ranks."""
    return runtime.current().place.homogeneous


def mpi_threads_supported() -> bool:
    """Whether the programme may call MPI itself while fusionctl runs (MPI_THREAD_MULTIPLE)."""
    return runtime.current().place.threads_multiple


def mpi_enabled() -> bool:
    """True: MPI is the transport."""
    return True


def mpi_built() -> bool:
    """True: MPI is found at run time, and nothing needs to be built for it."""
    return True


def gloo_enabled() -> bool:
    """False."""
    return False


def gloo_built() -> bool:
    """False."""
    return False


def nccl_built() -> int:
    """0, where Horovod gives NCCL's version."""
    return 0


def ddl_built() -> bool:
    """False."""
    return False


def ccl_built() -> bool:
    """False."""
    return False


def cuda_built() -> bool:
    """False: tensors are reduced in host memory."""
    return False


def rocm_built() -> bool:
    """False: tensors are reduced in host memory."""
    return False
