"""falcon_numba: matrix multiplication beyond the hardware's classical peak."""

from ._version import __version__

__all__ = ["__version__"]
