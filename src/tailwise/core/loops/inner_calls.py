"""Calls of kernels from kernels: LLVM instructions for the caller, and no machine code of their own.

numba turns every function that a compiled one calls into machine code, with entries for Python and for C, and keeps it
on disk. Then it copies the function's instructions into the caller all the same, and nobody uses the rest. So a kernel
has two dispatchers: one for calls from Python, and one for calls from kernels, which yields instructions alone.
docs/decisions/0011-kernels-inside-kernels.md has the reasons, and what it relies on in numba.
"""

from __future__ import annotations

import gc
from functools import cached_property
from typing import Any

from numba import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import NativeLowering
from numba.core.typing.typeof import Purpose
from numba.extending import typeof_impl


class _Instructions(JITCodeLibrary):
    """Instructions of a function and of those it calls, linked and neither optimised nor compiled."""

    def finalize(self) -> None:
        self._raise_if_finalized()
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerToInstructions(NativeLowering):
    """numba's pass without machine code; callers reach the function by its overload."""

    _name = "tailwise_lower_to_instructions"

    def run_pass(self, state: Any) -> bool:
        flags, target = state.flags, state.targetctx
        if not flags.nrt and isinstance(state.return_type, types.Array):
            raise TypeError(
                f"kernel '{state.func_id.func_qualname}' returns an array to a kernel, and kernels do not count "
                "references: let the caller pass the array that is to be filled."
            )
        state.library = _Instructions(target.codegen(), state.func_id.func_qualname)
        flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        super().run_pass(state)
        state.cr = state.cr._replace(cfunc=_Place())
        target.insert_user_function(state.cr.cfunc, state.cr.fndesc, [state.library])
        return True


class _Place:
    """Placeholder for machine code that does not exist."""


class _Whole(JITCodeLibrary):
    """A kernel with all that it calls, on the way to machine code. numba optimises every function by itself before all
    of them together; here the inner ones were, and the rest is done with the whole."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerToMachineCode(NativeLowering):
    """numba's own pass with another library, and without an entry for C where an argument is a tuple: the entry unpacks
    it number by number, and only plain functions of arrays are passed by their address."""

    _name = "tailwise_lower_to_machine_code"

    def run_pass(self, state: Any) -> bool:
        state.library = _Whole(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        state.flags.no_cfunc_wrapper = any(isinstance(one, types.BaseTuple) for one in state.args)
        return bool(super().run_pass(state))


class _Compiler(CompilerBase):
    """numba's passes with another last one."""

    lowering: type[NativeLowering] = _LowerToMachineCode

    def define_pipelines(self) -> list[Any]:
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [(self.lowering if one is NativeLowering else one, why) for one, why in passes.passes]
        passes.finalize()
        return [passes]


class _InnerCompiler(_Compiler):
    lowering = _LowerToInstructions


class _Inner(CPUDispatcher):
    """Dispatcher for calls from kernels; Python cannot call it."""

    def add_overload(self, cres: Any) -> None:
        self.overloads[tuple(cres.signature.args)] = cres


class Kernel(CPUDispatcher):
    """Dispatcher for calls from Python; `inner` is the one for calls from kernels."""

    _compiler: Any  # numba's

    def __init__(self, function: Any, *, targetoptions: dict[str, Any]) -> None:
        super().__init__(function, targetoptions=targetoptions, pipeline_class=_Compiler)
        self._compiler._get_implementation = self._implementation

    def _implementation(self, types: Any, named: Any) -> Any:
        """Function to compile: the kernel itself, or a call of its instructions if they exist for these types."""
        inner = vars(self).get("inner")
        if inner is None or tuple(types) not in inner.overloads:
            return self.py_func
        name, numbers = self.py_func.__name__, ", ".join(f"a{k}" for k in range(len(types)))
        namespace: dict[str, Any] = {"kernel": self, "__name__": self.py_func.__module__}
        exec(f"def {name}({numbers}):\n    return kernel({numbers})", namespace)
        return namespace[name]

    def compile(self, sig: Any) -> Any:
        """Compile without garbage collection, which would walk over all of torch's objects many times."""
        running = gc.isenabled()
        gc.disable()
        try:
            return super().compile(sig)
        finally:
            if running:
                gc.enable()

    @cached_property
    def inner(self) -> _Inner:
        """Dispatcher for calls from kernels."""
        return _Inner(self.py_func, targetoptions=self.targetoptions, pipeline_class=_InnerCompiler)


@typeof_impl.register(Kernel)
def _type_of_kernel(value: Kernel, context: Any) -> Any:
    """A kernel that a kernel names is the inner one; as an argument it is a function with an address."""
    return types.Dispatcher(value.inner if context.purpose is Purpose.constant else value)
