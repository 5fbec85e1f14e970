"""`matrix_power`: repeated squaring in a few arrays."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from . import config
from .api import matmul
from .operands import refuse_unsafe


def matrix_power(a: Any, n: Any, **options: Any) -> Any:
    """A to the power `n`, with the semantics of `numpy.linalg.matrix_power`.

    Parameters
    ----------
    a : array_like, shape (..., M, M)
        Integers wrap around, and bool is OR of ANDs, as in `matmul`.
    n : int
        0 gives the identity, a negative one a power of the inverse.
    **options
        See `falcon_numba.config_context`; they hold for every product.

    Returns
    -------
    ndarray, shape (..., M, M)
        Of the dtype of `a`; of its inverse where `n` is negative.

    Raises
    ------
    TypeError
        An exponent that is no integer, or a dtype that can't be inverted.
    numpy.linalg.LinAlgError
        Matrices that are not square, or with negative `n` not invertible.
    NotImplementedError
        Stacks of objects.

    Notes
    -----
    Of an exponent of b bits, s of them set, there are b + s − 2 products (D. E. Knuth, *The Art of Computer
    Programming*, vol. 2, section 4.6.3), in at most three arrays.

    Examples
    --------
    >>> matrix_power([[1, 1], [1, 0]], 10)[0, 1]
    np.int64(55)
    """
    config.resolve(**options)  # bad ones are refused whatever the exponent
    refuse_unsafe((a,))
    a = np.asanyarray(a)
    whole = hasattr(type(n), "__index__")
    if a.dtype == object or type(a) is not np.ndarray or not whole or a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        return np.linalg.matrix_power(a, n)  # or its complaint
    n = operator.index(n)
    if n < 0:
        a, n = np.linalg.inv(a), -n
    if n < 2:
        return np.linalg.matrix_power(a, n)

    spare: list[np.ndarray] = []

    def product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return matmul(x, y, out=spare.pop() if spare else None, **options)

    square, result = a, None
    while True:
        if n & 1:
            old, result = result, square if result is None else product(result, square)
            if old is not None and old is not a:
                spare.append(old)
        n >>= 1
        if n == 0:
            return result
        old, square = square, product(square, square)
        if old is not a and old is not result:
            spare.append(old)
