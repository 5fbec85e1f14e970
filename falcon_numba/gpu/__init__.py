"""Products on NVIDIA GPUs, through numba-cuda: under construction, and not yet reached by `gemm` and `matmul`.

Importing this package loads nothing of CUDA; `target` does that, when a product asks for it. It isn't named `cuda`
because numba-cuda redirects the import of every module whose name contains ``numba.cuda``.
"""
