"""The command ``falcon-numba``.

Exit codes: 0 done, 1 the work failed, 2 wrong usage or input, 130 interrupted. An error is one line on stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TextIO

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
_WRONG_INPUT = (ValueError, TypeError, NotImplementedError, FileNotFoundError, FileExistsError, IsADirectoryError)


class _Parser(argparse.ArgumentParser):
    """Reports an error in one line, whichever subcommand met it."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"falcon-numba: error: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; those of the process by default.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without ⟨ or ≤ must not end a report
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit as stop:  # --help, --version and usage errors have printed already
        return int(stop.code or 0)
    try:
        with _sigterm_interrupts(), _warnings_in_a_line():
            code = arguments.run(arguments)
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("falcon-numba: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output left, as in `falcon-numba schemes | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if arguments.debug:
            raise
        print(f"falcon-numba: error: {_one_line(error)}", file=sys.stderr)
        return USAGE if isinstance(error, _WRONG_INPUT) else FAILED


def _one_line(error: Exception) -> str:
    """The error's message in one line, with its class where the message alone would say nothing."""
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    elif isinstance(error, (ValueError, TypeError, OSError, NotImplementedError)) and str(error):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error}".rstrip(": ")
    return " ".join(text.split())


@contextlib.contextmanager
def _warnings_in_a_line() -> Iterator[None]:
    """Show warnings without the place in the code that gave them."""

    def show(message: Warning | str, *_place: Any, **_more: Any) -> None:
        print(f"falcon-numba: warning: {' '.join(str(message).split())}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM (a job scheduler's or ``timeout``'s way to stop us) clean up as Ctrl-C does."""

    def interrupt(_signal: int, _frame: Any) -> NoReturn:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # only the main thread may
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _parser() -> argparse.ArgumentParser:
    from ._version import __version__

    parser = _Parser(prog="falcon-numba", description="Matrix products with Strassen-like algorithms, in Numba.")
    parser.add_argument("--version", action="version", version=f"falcon-numba {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        added.set_defaults(run=run)
        return added

    command("info", _info, "show this machine as the library sees it, versions, cache folder and options")
    schemes = command("schemes", _schemes, "show the catalogue of algorithms")
    schemes.add_argument("--long", action="store_true", help="sources in full, as where the output is no terminal")

    plan = command("plan", _plan, "show the plan for an M×K times K×N product, without running it")
    for name in ("M", "N", "K"):
        plan.add_argument(name, type=int)
    plan.add_argument("--dtype", default="float64", help="float64 (default), float32, …")
    _add_options(plan)

    matmul = command("matmul", _matmul, "multiply two .npy files")
    matmul.add_argument("a", metavar="A.npy")
    matmul.add_argument("b", metavar="B.npy")
    matmul.add_argument("-o", "--output", metavar="C.npy", required=True, help="appears only when complete")
    matmul.add_argument("--force", action="store_true", help="replace an existing output")
    matmul.add_argument(
        "--dtype",
        help="result dtype, such as int32 for the exact product of int8 files; float16 results are computed in float32 "
        "and rounded once, integers modulo 2^bits; dtypes without an engine run through NumPy",
    )
    matmul.add_argument("--progress", action="store_true", help="report progress even if stderr is no terminal")
    _add_options(matmul)

    calibrate = command(
        "calibrate", _calibrate, "measure this machine's speeds, which plans are compared by, and keep them"
    )
    calibrate.add_argument("--dtype", nargs="+", choices=("float32", "float64"), default=["float32", "float64"])
    calibrate.add_argument("--threads", nargs="+", type=int, metavar="N", help="numbers of them; default: 1 and all")
    calibrate.add_argument("--dry-run", action="store_true", help="measure and show, but save nothing")

    demo = command("demo", _demo, "time the products of one Llama-3-8B layer, NumPy beside falcon_numba")
    demo.add_argument(
        "--quick", action="store_true", help="1024 tokens in place of 2048, and only the attention's products"
    )
    demo.add_argument("--json", metavar="FILE", help="also write the figures there")
    return parser


def _add_options(parser: argparse.ArgumentParser) -> None:
    """The library's options, as `falcon_numba.gemm` takes them; one that isn't given stays out of the call."""

    def add(flag: str, **rest: Any) -> None:
        parser.add_argument(flag, default=argparse.SUPPRESS, **rest)
        option_names.append(flag.removeprefix("--").replace("-", "_"))

    option_names: list[str] = []
    add("--depth", type=_number_or_text, help='levels of recursion, or "auto"')
    add("--scheme", help='name, "auto", or .json or .npz file; with commas, one for each level, outermost first')
    add("--accuracy", help='"balanced", "componentwise", "normwise" or "estimated"')
    add("--max-error", type=float, help="largest error allowed, relative to K·max|A|·max|B|")
    add("--workspace-limit", type=_number_or_text, help='extra memory allowed: bytes, or "256 MiB"')
    add("--threads", type=int, help="of the engine; NumPy's BLAS has settings of its own")
    add("--executor", help='"auto", "numpy" or "cpu"')
    add("--leaf", help='"auto", "simd" or "portable"')
    add("--check", action="store_true", help="test the result, and let NumPy compute again what fails")
    add("--reproducible", action="store_true", help="the same bits on every run")
    parser.set_defaults(option_names=tuple(option_names))


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    given = {name: getattr(arguments, name) for name in arguments.option_names if hasattr(arguments, name)}
    if "scheme" in given:
        given["scheme"] = _scheme(given["scheme"])
    return given


def _number_or_text(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text


def _scheme(text: str) -> str | tuple[str, ...]:
    """The option's value; schemes in files are registered."""
    from . import schemes
    from .options import split_names

    def known(name: str) -> str:
        return schemes.register(name).name if name.lower().endswith((".json", ".npz")) else name

    names = split_names(text)
    return known(names) if isinstance(names, str) else tuple(map(known, names))


def _info(_arguments: argparse.Namespace) -> int:
    from .sysinfo import describe

    print(describe())
    return DONE


def _schemes(arguments: argparse.Namespace) -> int:
    from . import schemes
    from .algorithms.table import schemes_text

    print(schemes_text(list(schemes.values()), long=arguments.long or not sys.stdout.isatty()))
    return DONE


def _plan(arguments: argparse.Namespace) -> int:
    from . import plan_for

    print(plan_for(arguments.M, arguments.N, arguments.K, arguments.dtype, **_options(arguments)))
    return DONE


def _matmul(arguments: argparse.Namespace) -> int:
    from .npyio import multiply_files

    shown = arguments.progress or sys.stderr.isatty()
    start = time.perf_counter()
    with _Progress(sys.stderr) as progress:
        done = multiply_files(
            arguments.a,
            arguments.b,
            arguments.output,
            force=arguments.force,
            dtype=arguments.dtype,
            report=progress if shown else None,
            **_options(arguments),
        )
    seconds = time.perf_counter() - start
    unit = "Gop/s" if done.dtype.kind in "biu" else "GFLOP/s"
    rate = f"{_digits(done.operations / seconds / 1e9)} effective {unit}"
    print(f"{arguments.output}: {done.dtype} {done.shape}, {seconds:.2f} s with reading and writing, {rate}")
    return DONE


def _digits(rate: float) -> str:
    """Three digits, as far as they are before the third decimal."""
    return f"{rate:.{2 if rate < 10 else 1 if rate < 100 else 0}f}"


def _calibrate(arguments: argparse.Namespace) -> int:
    from .calibration import run

    with _Progress(sys.stderr, "steps") as progress:
        report = progress if sys.stderr.isatty() else None
        text = run(arguments.dtype, arguments.threads, dry_run=arguments.dry_run, report=report)
    print(text)
    return DONE


def _demo(arguments: argparse.Namespace) -> int:
    from .demo import run

    return run(quick=arguments.quick, json_path=arguments.json)


class _Progress:
    """Parts done and time left, on one line that rewrites itself on a terminal and on one line each elsewhere."""

    def __init__(self, stream: TextIO, what: str = "rows") -> None:
        self._stream = stream
        self._what = what
        self._start = time.perf_counter()
        self._unfinished_line = False

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._unfinished_line:  # so that whatever is printed next starts its own line
            self._stream.write("\n")

    def __call__(self, done: int, total: int) -> None:
        left = (time.perf_counter() - self._start) * (total - done) / done
        text = f"{done}/{total} {self._what}, {100 * done // total} %, {left:.0f} s left"
        terminal = self._stream.isatty()
        self._stream.write(f"\r{text:<50}" if terminal else f"{text}\n")
        self._stream.flush()
        self._unfinished_line = terminal
