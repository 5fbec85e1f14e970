"""The engine for NVIDIA GPUs. Importing this package imports nothing of CUDA; its first product does.

The name is not `cuda`: numba-cuda redirects every import whose full name contains "numba.cuda".
"""
