"""Build the compiled modules of cython_ext/ into fusionctl/ (no MPI and no TensorFlow needed)."""

from Cython.Build import cythonize
from setuptools import Extension, setup

MODULES = ["_board", "_mpi", "_kernels", "_table", "_rows", "_shared", "_data", "_lane", "_engine", "_tf"]

setup(
    ext_modules=cythonize(
        [
            Extension(
                f"fusionctl.{module}",
                [f"cython_ext/fusionctl/{module}.pyx"],
                include_dirs=["cython_ext/fusionctl"],
                extra_compile_args=["-O3", "-std=c++17", "-Wall", "-Wno-unused-function", "-Wno-sign-compare"],
                libraries=["dl"],
                language="c++",
            )
            for module in MODULES
        ],
        include_path=["cython_ext"],
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "embedsignature": True,
        },
    )
)
