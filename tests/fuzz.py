"""Random products by the thousand, outside of the test run::

    python tests/fuzz.py --products 100000 --seed 1
    python tests/fuzz.py --seed 1 --only 4711        # that one again

Product i of a seed is always the same one. They run in a child process, so that one that kills it or hangs is named as
well. The exit code is 1 after the first fault.
"""

from __future__ import annotations

import argparse
import faulthandler
import multiprocessing
import os
import sys
import time
import traceback

import numpy as np

WAKE = 1.0  # seconds
PATIENCE = 600  # wakes without a product: a hang. Not by the clock: somebody may have stopped both processes


def run(seed: int, first: int, last: int, at, verbose: bool) -> None:
    """Products `first` to `last` − 1; `at` says which one is running."""
    faulthandler.enable()
    from fuzzing import Drawn, draw_and_check
    from guards import guarding

    from falcon_numba.cpu import engine

    engine.borrow = guarding(engine.borrow)
    parent = os.getppid()
    for i in range(first, last):
        if os.getppid() != parent:  # killed: nobody is interested any more
            return
        at.value = i
        drawn = Drawn("")
        try:
            draw_and_check(np.random.default_rng([seed, i]), drawn)
        except Exception:
            traceback.print_exc()
            sys.exit(1)
        if verbose:
            print(drawn)
    at.value = last


def main() -> int:
    parser = argparse.ArgumentParser(description="Random products, each with an oracle.")
    parser.add_argument("--products", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", type=int, help="run this product alone and show what it is")
    options = parser.parse_args()
    first, last = (0, options.products) if options.only is None else (options.only, options.only + 1)

    print(f"seed {options.seed}, products {first} to {last - 1}", flush=True)
    context = multiprocessing.get_context("spawn")
    at = context.RawValue("q", first)
    arguments = options.seed, first, last, at, options.only is not None
    child = context.Process(target=run, args=arguments)
    start, shown, seen, waited = time.monotonic(), 0, -1, 0
    child.start()
    while child.is_alive() and waited < PATIENCE:
        child.join(WAKE)
        waited, seen = (0, at.value) if at.value != seen else (waited + 1, seen)
        percent = 100 * (seen - first) // (last - first)
        if percent > shown:
            shown = percent
            print(f"{percent:3d} %  product {seen}  {time.monotonic() - start:.0f} s", flush=True)
    if child.is_alive():
        child.kill()
        child.join()
        print("hangs:", file=sys.stderr)
    elif child.exitcode == 0:
        print(f"{last - first} products without a fault, seed {options.seed}, {time.monotonic() - start:.0f} s")
        return 0
    elif child.exitcode < 0:
        print(f"killed by signal {-child.exitcode}:", file=sys.stderr)
    print(f"again with: python tests/fuzz.py --seed {options.seed} --only {at.value}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
