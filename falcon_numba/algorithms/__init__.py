"""Schemes: lower-complexity matrix multiplication algorithms as exact data. Mathematics only: NumPy, no Numba."""

from .catalog import SchemeMapping, UnknownSchemeError, resolve_scheme, schemes
from .compose import classical, compose, direct_sum, power
from .files import load_scheme, save_scheme
from .flatten import FlatScheme, Terms, flatten
from .scheme import Scheme, SchemeError
from .stability import (
    chain_length,
    combination_lengths,
    flat_chains,
    gamma,
    growth_factor,
    levels_chain,
    levels_growth,
)
from .straightline import additions_cse, additions_naive
from .symmetry import permutations, permute, transpose
from .table import formulas

__all__ = [
    "FlatScheme",
    "Scheme",
    "SchemeError",
    "SchemeMapping",
    "Terms",
    "UnknownSchemeError",
    "additions_cse",
    "additions_naive",
    "chain_length",
    "classical",
    "combination_lengths",
    "compose",
    "direct_sum",
    "flat_chains",
    "flatten",
    "formulas",
    "gamma",
    "growth_factor",
    "levels_chain",
    "levels_growth",
    "load_scheme",
    "permutations",
    "permute",
    "power",
    "resolve_scheme",
    "save_scheme",
    "schemes",
    "transpose",
]
