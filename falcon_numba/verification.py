"""`verify_product`: is this array the product of those two? Of anyone's product, in O(n²)."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .algorithms import levels_growth
from .lanes import lane_of
from .numerics.bounds import FIRST_ORDER, error_bound, unit_roundoff
from .numerics.residual import Allowance, Finding, residual_test
from .numerics.ring import ring_test
from .operands import refuse_masks

if TYPE_CHECKING:
    from .planning import Plan

ROUNDS, ROWS = 2, 4
COMPLEX = 4.0  # products of complex numbers: (2√2)·γ for the usual four real products, 4·γ for three


@dataclass(frozen=True, slots=True)
class Verification:
    """The outcome of `verify_product`. Its truth value is `ok`: ``assert verify_product(a, b, c)``.

    Attributes
    ----------
    ok : bool
        Whether the product is right to within what is allowed.
    reason : str
        What was compared with what.
    ratio : float
        The largest error seen, as a part of what is allowed: above 1 the product is wrong. 0 for integers that are
        right, infinity for wrong ones and for a wrong NaN or Inf.
    index : tuple of int, or None
        The element that was seen to have it (for a right product, the worst of the few rows that were computed again);
        without the column where only the residual of a row shows it.
    error, allowed : float
        Of that element.
    skipped : int
        Rows that could not be tested numerically, since NaN or Inf stand in `c_in` or overflows in `c` there.
    """

    ok: bool
    reason: str
    ratio: float = 0.0
    index: tuple[int, ...] | None = None
    error: float = 0.0
    allowed: float = 0.0
    skipped: int = 0

    def __bool__(self) -> bool:
        return self.ok


def verify_product(
    a: Any,
    b: Any,
    c: Any,
    *,
    alpha: Any = 1,
    beta: Any = 0,
    c_in: Any = None,
    plan: Plan | None = None,
    max_error: float | None = None,
    rounds: int = ROUNDS,
    rows: int = ROWS,
    seed: Any = None,
) -> Verification:
    """Test whether C = α·A·B + β·C₀, with random vectors, in O(n²): it costs a few passes over the operands.

    It works on anyone's product. A product whose rounding errors keep the contract is never refused, whatever the
    random vectors are: the tolerance is proven. A wrong element is always seen if its error is twice what is allowed
    all elements of its row together, and practically always if it exceeds what is allowed itself; several wrong
    elements of one row are missed with a probability of at most 2^−`rounds` (integers: a single one never, several
    2^−(`rounds` − 1)).

    Parameters
    ----------
    a, b : array_like, shapes (..., M, K) or (K,), and (..., K, N) or (K,)
        As for `numpy.matmul`; any layout.
    c : array_like, shape (..., M, N)
        To be verified, of integers, floating-point or complex numbers. Axes are left out as by `numpy.matmul`.
    alpha, beta : finite scalar
    c_in : array_like, shape as `c`, optional
        What C was before the product, for ``beta != 0``.
    plan : Plan, optional
        Of a product of this package, as it ran (`trace`): what its scheme and contract allow. Without it, what any
        classical product may do: (K + 4)·u·(|A||B|)_ij, u of the coarsest type of `a`, `b` and `c`, but accumulated
        in float32 at least.
    max_error : float, optional
        Allow this error instead, relative to K·max|A|·max|B|: for products of other fast algorithms.
    rounds : int, default 2
        Random vectors.
    rows : int, default 4
        Rows most in doubt that are computed again and compared element by element.
    seed : optional
        For `numpy.random.default_rng`: repeats a test.

    Returns
    -------
    Verification
        True in a boolean context if the product is right.

    Raises
    ------
    ValueError
        Shapes that do not fit, a `plan` for other ones, both `plan` and `max_error`, alpha or beta that are not finite.
    TypeError
        dtypes without a residual: bool (OR of ANDs is no ring), objects; a result of integers for other operands.

    Notes
    -----
    NaN and Inf must stand in C exactly where the classical product has them, or where a sum may overflow. Rows of A and
    columns of B that hold NaN or Inf cost a product of their own. `falcon_numba.numerics.residual` derives the
    tolerance. The memory used beside operands is that of a few rows and columns.

    References
    ----------
    R. Freivalds, "Probabilistic machines can use less running time", IFIP Congress 77, 839–842.
    N. J. Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed., SIAM 2002, §3.1, §3.5.

    Examples
    --------
    >>> import numpy as np
    >>> a, b = np.random.default_rng(0).standard_normal((2, 300, 300))
    >>> c = a @ b
    >>> bool(verify_product(a, b, c))
    True
    >>> c[7, 9] += 1e-9
    >>> verify_product(a, b, c).index
    (7, 9)
    """
    refuse_masks((a, b, c, c_in))
    a, b, c = np.asarray(a), np.asarray(b), np.asarray(c)
    rounds, rows = operator.index(rounds), operator.index(rows)
    if rounds < 1 or rows < 0:
        raise ValueError(f"rounds={rounds}, rows={rows}: at least one round, and no negative number of rows")
    before = None if c_in is None else np.asarray(c_in)
    _check_scalars(alpha, beta, before, c)
    a, b, c, before, shown = _as_matrices(a, b, c, before)
    if beta == 0:
        before = None
    (M, K), N, shape = a.shape[-2:], b.shape[-1], c.shape[:-2]
    if plan is not None:
        if max_error is not None:
            raise ValueError("pass either plan or max_error")
        plan.check(M, N, K, math.prod(shape), c.dtype.name)
    if max_error is not None and not (max_error > 0 and math.isfinite(max_error)):
        raise ValueError(f"max_error={max_error!r}: must be a finite number > 0")

    rng = np.random.default_rng(seed)
    worst = Verification(True, "an empty product")
    if c.size == 0:
        return worst
    if K == 0 or alpha == 0:
        K, alpha = 1, 0
        a, b = np.zeros((*shape, M, 1), a.dtype), np.zeros((*shape, 1, N), b.dtype)
    exact = c.dtype.kind in "iu"
    allowance = None if exact else _allowance(a, b, c, K, plan, max_error)
    for index in np.ndindex(shape):
        parts = a[index], b[index], c[index]
        old = None if before is None else before[index]
        if allowance is None:
            found = _of_ring(ring_test(*parts, int(alpha), int(beta), old, rounds, rng))
        else:
            found = _of_floats(residual_test(*parts, alpha, beta, old, allowance, rounds, rows, rng))
        skipped = worst.skipped + found.skipped
        if worst.index is None or not found.ratio <= worst.ratio:
            where = None if found.index is None else shown(index, found.index)
            worst = replace(found, index=where)
        worst = replace(worst, skipped=skipped)
    return worst


def allowance_of(plan: Plan) -> Allowance:
    """What a plan's product may do."""
    blocks, dtype = plan.blocks, plan.dtype
    if blocks is None:
        return classical_allowance(plan.K, unit_roundoff(dtype), np.dtype(dtype))
    dtype, parts = lane_of(dtype)
    K = parts * plan.K
    bound = error_bound(plan.levels, K, blocks.KC, dtype, "componentwise")
    u, largest = unit_roundoff(dtype), float(np.finfo(dtype).max)
    if not plan.levels:
        return Allowance(bound.factor, u, bound.underflow, largest, plan.passes)
    # What the bound has in front of e·K_leaf. Where the guard ran the classical product instead, this allows more: its
    # L is less than k times as large, and e is more than k².
    k = plan.grid[1]
    growth = float(levels_growth(plan.levels)) * k
    roundings = bound.factor / (growth * -(-K // k))
    balanced = plan.accuracy == "balanced"
    return Allowance(roundings, u, bound.underflow, largest, plan.passes, plan.grid, growth, balanced)


def classical_allowance(K: int, u: float, result: np.dtype) -> Allowance:
    """What a product that sums K terms in any order may do: K roundings, alpha, and operands rounded on the way in."""
    info = _finfo(result)
    roundings = FIRST_ORDER * (K + 4) * u * (COMPLEX if result.kind == "c" else 1.0)
    single = max(float(info.smallest_normal), float(np.finfo(np.float32).tiny) if u > 1e-12 else 0.0)
    return Allowance(roundings, float(info.eps) / 2, (K + 1) * single, float(info.max))


def _finfo(dtype: np.dtype) -> Any:
    try:
        return np.finfo(dtype)
    except ValueError:  # bfloat16 and its kin
        import ml_dtypes

        return ml_dtypes.finfo(dtype)


def _allowance(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, K: int, plan: Plan | None, max_error: float | None
) -> Allowance:
    if plan is not None:
        return allowance_of(plan)
    floats = [x.dtype for x in (a, b, c) if x.dtype.kind not in "iub"]
    coarsest = max(float(_finfo(x).eps) / 2 for x in floats)
    u = min(coarsest, unit_roundoff("float32"))
    return classical_allowance(K, u, c.dtype)._replace(max_error=max_error)


def _is_number(dtype: np.dtype) -> bool:
    """Of the numbers that have a residual; the short floats of ml_dtypes, of kind "V", are known by their names."""
    return dtype.kind in "iufc" or (dtype.kind == "V" and dtype.name.startswith(("float", "bfloat")))


def _check_scalars(alpha: Any, beta: Any, before: np.ndarray | None, c: np.ndarray) -> None:
    for name, value in (("alpha", alpha), ("beta", beta)):
        x = np.asarray(value)
        if x.ndim or x.dtype.kind not in "biufc":
            raise TypeError(f"{name}={value!r}: must be a number")
        if not np.isfinite(x):
            raise ValueError(f"{name}={value!r}: must be finite")
        if c.dtype.kind in "iu" and x.dtype.kind not in "biu":
            raise TypeError(f"{name}={value!r}: must be an integer for a product of integers")
    if beta != 0 and before is None:
        raise ValueError(f"beta={beta!r} needs c_in, what C was before")


def _as_matrices(a: np.ndarray, b: np.ndarray, c: np.ndarray, before: np.ndarray | None):
    """Operands, C and C₀ with two core axes and common batch axes, and how an index in them is one in C."""
    exact = c.dtype.kind in "iu"
    for name, x in (("a", a), ("b", b), ("c", c), ("c_in", before)):
        if x is None:
            continue
        if not (_is_number(x.dtype) or (x.dtype.kind == "b" and name in "ab")):
            why = "OR of ANDs has no residual" if x.dtype.kind == "b" else "only numbers can be verified"
            raise TypeError(f"{name} has dtype {x.dtype}: {why}")
        if exact and x.dtype.kind not in "biu":
            raise TypeError(f"c has dtype {c.dtype}, but {name} has {x.dtype}: no product of integers")
    if a.ndim == 0 or b.ndim == 0:
        raise ValueError("a and b must have at least one dimension")
    row, column = a.ndim == 1, b.ndim == 1
    a, b = a[np.newaxis, :] if row else a, b[:, np.newaxis] if column else b
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    core = (*(() if row else a.shape[-2:-1]), *(() if column else b.shape[-1:]))
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"inner sizes differ: a has shape {a.shape}, b has shape {b.shape}")
    for name, x in (("c", c), ("c_in", before)):
        if x is not None and x.shape != (*batch, *core):
            raise ValueError(f"{name} has shape {x.shape}, the product has shape {(*batch, *core)}")
    full = (*batch, a.shape[-2], b.shape[-1])
    c, before = c.reshape(full), None if before is None else before.reshape(full)
    a, b = np.broadcast_to(a, batch + a.shape[-2:]), np.broadcast_to(b, batch + b.shape[-2:])

    def shown(index: tuple[int, ...], place: tuple[int, ...]) -> tuple[int, ...]:
        left_out = {0: row, 1: column}
        return (*index, *(i for axis, i in enumerate(place) if not left_out[axis]))

    return a, b, c, before, shown


def _of_ring(found: tuple[int, int, int] | None) -> Verification:
    if found is None:
        return Verification(True, "integers: the residuals are zero")
    i, j, error = found
    return Verification(False, f"off by {error}", math.inf, (i, j), abs(float(error)), 0.0)


def _of_floats(found: Finding) -> Verification:
    ok = found.ratio <= 1
    where: tuple[int, ...] | None = (found.row, found.column)
    if found.column < 0:
        where = None if found.row < 0 else (found.row,)
    if found.what:
        reason = f"an element {found.what}"
    elif found.row < 0:
        reason = "NaN and Inf stand where they should"
    else:
        seen = "the residual of a row" if found.column < 0 else "the worst element computed again"
        reason = f"{seen} is off by {found.error:.2g}, {found.allowed:.2g} {'is' if ok else 'would be'} allowed"
    return Verification(ok, reason, found.ratio, where, found.error, found.allowed, found.skipped)
