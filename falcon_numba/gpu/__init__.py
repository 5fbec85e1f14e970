"""The engine for NVIDIA GPUs. Nothing of the package imports it but on request; it needs numba-cuda.

The name is not `cuda`: numba-cuda redirects every import whose full name contains "numba.cuda".
"""
