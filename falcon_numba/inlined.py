"""Numba functions that only other Numba functions call.

Numba optimises every function, emits its machine code, links its LLVM code into each caller, and there optimises and
emits it again: of functions nested ten deep most of the compile time goes into code that nobody runs. `inner` functions
are only lowered; whatever calls them optimises them together with itself, once. Halves the time of a cold start.
"""

from __future__ import annotations

from numba import _dynfunc, njit
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering


@register_pass(mutates_CFG=True, analysis_only=False)
class _LoweringAlone(NativeLowering):
    """Lowers a function to LLVM code which is there for its callers, and for them alone."""

    _name = "falcon_numba_lowering_alone"

    def run_pass(self, state):
        state.library = library = state.targetctx.codegen().create_library(state.func_id.func_qualname)
        library._optimize_final_module = lambda: None
        library._finalize_final_module = lambda: setattr(library, "_finalized", True)
        state.flags.no_compile = True
        super().run_pass(state)
        fndesc, env = state.cr.fndesc, state.cr.env
        # A function without machine code, by which callers find this one's LLVM code.
        nobody = _dynfunc.make_function(fndesc.lookup_module(), fndesc.qualname, "", 0, env, (library,))
        state.targetctx.insert_user_function(nobody, fndesc, [library])
        state.cr = state.cr._replace(cfunc=nobody)
        return True


class _InnerCompiler(CompilerBase):
    def define_pipelines(self):
        builder = DefaultPassBuilder.define_nopython_pipeline(self.state)
        builder.passes = [
            (_LoweringAlone, text) if pass_ is NativeLowering else (pass_, text) for pass_, text in builder.passes
        ]
        builder.finalize()
        return [builder]


# No wrappers for Python and C, no checks for division by zero.
inner = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy", pipeline_class=_InnerCompiler)


def named(function, *key):
    """The function with `key` in its qualified name, and so in the names of its machine code.

    Numba tells equal functions over different closures apart by a number that starts at 1 in every process. Kernels
    compiled in two processes, kept on disk and loaded together would share names and call each other's parts.
    """
    function.__qualname__ = "_".join([function.__qualname__, *map(str, key)])
    return function


def inner_of(*key):
    """`inner` for the functions of one kernel, `key` being what its closures depend on."""
    return lambda function: inner(named(function, *key))
