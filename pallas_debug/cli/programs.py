"""Programs that `dump` and `verify` run: a script, a module, or a function with arguments."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import itertools
import os
import re
import runpy
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pallas_debug import tracebacks
from pallas_debug.cli import output
from pallas_debug.errors import PallasDebugError, ProgramFailed, UsageError, meant
from pallas_debug.guards import refused_call

if TYPE_CHECKING:
    from pallas_debug.cli.options import CallOptions, FunctionOptions, ProgramOptions

_FUNCTION = re.compile(r"(?P<module>[\w.]+|.+\.py):(?P<function>[A-Za-z_][\w.]*)")


def named_function(what: str) -> tuple[str, str] | None:
    """Split `package.module:function` or `file.py:function`; None for a script or module."""
    found = _FUNCTION.fullmatch(what)
    if found is None or Path(what).exists():
        return None
    return found["module"], found["function"]


def function_of(options: CallOptions) -> tuple[str, str] | None:
    """Return the module and the name of the function that is named; None for a script or module.

    Raises:
      UsageError: words follow a function, or a script is missing or given a function's arguments.
    """
    named = None if options.module else named_function(options.what)
    if named is None:
        refuse_arguments(options)
        _check_exists(options.what, module=options.module)
    else:
        _refuse_words(options.what, options.rest)
    return named


def refuse_arguments(options: FunctionOptions) -> None:
    """Reject options that apply only to functions, for a script or module."""
    given = {"--arg": options.args, "--inputs": options.inputs, "--spec": options.spec}
    for name in [name for name, value in given.items() if value]:
        raise not_a_function(name, options.what)


def not_a_function(option: str, what: str) -> UsageError:
    """Error for an option that applies only to functions, given with a script or module."""
    return UsageError(
        f"{option} is for package.module:function, and {what!r} is a script or module"
    )


def _refuse_words(what: str, words: Sequence[str]) -> None:
    """Reject words after a function, such as its arguments without `--arg`."""
    if words:
        # What follows an option may be its value.
        given = list(itertools.takewhile(lambda word: not word.startswith("-"), words)) or words[:1]
        advice = " ".join(f"--arg {shlex.quote(word)}" for word in given)
        raise UsageError(
            f"{what} is a function, and its arguments cannot follow it: {words[0]!r}. Pass them "
            f"with --arg: {advice}"
        )


def import_function(module: str, name: str) -> Callable[..., Any]:
    """Import a function.

    Args:
      module: its dotted name, or the path of its file, which ends in `.py`.
      name: of the function in it; dotted for a method.
    """
    dotted = _dotted(module)
    from pallas_debug import session

    session.leave_out_absent_tpu()
    try:
        with _noting_environment():
            found: Any = importlib.import_module(dotted)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{dotted}.".startswith(f"{error.name}."):
            raise  # raised for a module that this one imports
        raise _no_module(error.name) from error
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise UsageError(f"{module} has no {name!r}{meant(part, dir(found))}") from error
    if not callable(found):
        kind = type(found).__name__
        article = "an" if kind[0] in "aeiouAEIOU" else "a"
        raise UsageError(f"{module}:{name} is {article} {kind}, not a function")
    return found  # type: ignore[no-any-return]


def _dotted(module: str) -> str:
    """Return the name under which a module can be imported, after making its folder importable."""
    if not module.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))
        return module
    path = Path(module)
    if not path.is_file():
        raise UsageError(f"no such file: {module}{_near_file(path)}")
    folder, names = path.resolve().parent, [path.stem]
    while (folder / "__init__.py").is_file():  # by its package, for relative imports
        names.insert(0, folder.name)
        folder = folder.parent
    sys.path.insert(0, str(folder))
    return ".".join(names)


def _no_module(name: str) -> UsageError:
    here = [p.stem for p in Path.cwd().glob("*.py")]
    return UsageError(
        f"there is no module {name!r}{meant(name, here)}: is it installed, or should you be in "
        "another directory?"
    )


def _near_file(path: Path) -> str:
    names = [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
    return meant(path.name, names)


def pretending(options: ProgramOptions) -> contextlib.AbstractContextManager[None]:
    """Context in which a program and its imports see the devices that they ask for."""
    if not options.pretend:
        return contextlib.nullcontext()
    from pallas_debug.compiler import targets
    from pallas_debug.session import pretending

    return pretending(targets.split(",".join(options.targets)))


def check_call(
    what: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Check that a function can be called with these arguments, as far as its signature says."""
    refusal = refused_call(function, args, kwargs)
    if refusal is not None:
        signature, reason = refusal
        is_kernel = any(name.endswith("_ref") for name in signature.parameters)
        kernel = ". It looks like a kernel: name the function that passes it to pl.pallas_call"
        raise UsageError(
            f"{what} cannot be called with these arguments: {reason}. Pass --arg once per "
            "argument, such as --arg 'f32[128,128]' or --arg causal=True. Its signature: "
            f"{what.rpartition(':')[2]}{signature}{kernel * is_kernel}"
        )


def function_arguments(
    function: Callable[..., Any], options: FunctionOptions, *, values: bool = False
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a function, from `--arg`, `--inputs`, or a bundled kernel's spec.

    Args:
      values: whether arrays need values; otherwise arrays of `--arg` and specs are only shapes.
    """
    given = {"--arg": options.args, "--inputs": options.inputs, "--spec": options.spec}
    several = [name for name, value in given.items() if value]
    if len(several) > 1:
        raise UsageError(
            f"{' and '.join(several)} all specify the arguments: pass only one of them"
        )
    if not options.args and not options.inputs:
        return _bundled_arguments(function, options.spec, values=values)
    from pallas_debug import inputs, session

    session.leave_out_absent_tpu()
    if options.args:
        return inputs.parse(options.args, values=values)
    return _returned(str(options.inputs))


def function_call(
    named: tuple[str, str], options: FunctionOptions, *, values: bool = False
) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
    """Import a function, and return it with its arguments, which fit its signature."""
    function = imported(*named)
    args, kwargs = function_arguments(function, options, values=values)
    check_call(options.what, function, args, kwargs)
    return function, args, kwargs


def _returned(what: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments that the function of `--inputs` returns."""
    from pallas_debug import inputs

    function = function_named("--inputs", what)
    check_call(f"--inputs {what}", function, [], {})
    with running(f"--inputs {what}"):
        return inputs.from_function(function, f"--inputs {what}")


def _bundled_arguments(
    function: Callable[..., Any], spec_name: str | None, *, values: bool
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a spec if the function is a bundled kernel, or none otherwise."""
    operation = None
    if getattr(function, "__module__", "").split(".")[0] == "pallas_debug_kernels":
        from pallas_debug_kernels import gpu_operations, operations

        bundled = gpu_operations if ".ops.gpu." in function.__module__ else operations
        operation = next((op for op in bundled() if op.function is function), None)
    if operation is None:
        if spec_name is not None:
            raise UsageError(
                "--spec is for the bundled kernels, such as pallas_debug_kernels:matmul; "
                "`pallas-debug doctor --kernels` lists them"
            )
        return [], {}
    if values:
        from pallas_debug import session

        session.leave_out_absent_tpu()
    try:
        spec = operation.spec(spec_name) if spec_name else operation.tagged("small")[0]
    except ValueError as error:
        raise UsageError(str(error)) from error
    return list(spec.make_args() if values else spec.args), dict(spec.kwargs)


def ended(what: str, error: BaseException | None) -> str | None:
    """Print the traceback of a program that failed, and return a message about it."""
    if error is None:
        return None
    if isinstance(error, SystemExit):
        return exited(what, error)
    print_their_traceback(error)
    return f"{what} raised {type(error).__name__}"


def exited(what: str, error: SystemExit) -> str:
    return f"{what} exited with {error.code!r}"


def execute(what: str, rest: tuple[str, ...], *, module: bool) -> BaseException | None:
    """Run a program as `python` would, and return the exception that ended it, if any."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = [what, *rest]
    try:
        with _noting_environment():
            if module:
                sys.path.insert(0, str(Path.cwd()))
                runpy.run_module(what, run_name="__main__", alter_sys=True)
            else:
                sys.path.insert(0, str(Path(what).resolve().parent))
                runpy.run_path(str(Path(what).resolve()), run_name="__main__")
    except SystemExit as error:
        return None if error.code in (None, 0) else error
    except Exception as error:  # noqa: BLE001 - whatever the user's program raises
        return error
    finally:
        sys.argv, sys.path = argv, path
    return None


@contextlib.contextmanager
def _noting_environment() -> Iterator[None]:
    """Name settings of jax that a program makes in `os.environ`: we imported it before."""
    from pallas_debug import session

    before = dict(os.environ)
    try:
        yield
    finally:
        if names := session.without_effect(before):
            output.message(
                f"{', '.join(names)} had no effect: jax was imported before the program. Set "
                f"{'it' if len(names) == 1 else 'them'} for the command, or with jax.config.update"
            )


@contextlib.contextmanager
def running(what: str, when: str = "") -> Iterator[None]:
    """Context in which a program runs: its own exception is printed, and raised as its failure."""
    try:
        yield
    except PallasDebugError:
        raise
    except Exception as error:
        if tracebacks.is_our_mistake(error) and not _is_by_jax(error):
            raise
        print_their_traceback(error)
        message = f"{what} raised {type(error).__name__}{when}: {error}".partition("\n")[0]
        raise ProgramFailed(_explained(message, error)) from error


def _explained(message: str, error: Exception) -> str:
    """Append cause and advice to a message about an exception, if it is a known one."""
    from pallas_debug.explain import explain

    known = explain(str(error), in_context=True)
    if known is None:
        return message
    return f"{message.removesuffix('.')}; {known.title}: {known.cause}; {known.advice}"


def _check_exists(what: str, *, module: bool) -> None:
    """Check that a script or module exists."""
    if module:
        _check_module(what)
    elif not Path(what).is_file():
        near = _near_file(Path(what if what.endswith(".py") else f"{what}.py"))
        problem = "not a file" if Path(what).exists() else "no such script"
        raise UsageError(
            f"{problem}: {what}{near}. Name a Python file, `-m` and a module, "
            "or package.module:function."
        )


def _check_module(what: str) -> None:
    sys.path.insert(0, str(Path.cwd()))
    try:
        spec = importlib.util.find_spec(what)  # imports the packages that it is in
    except (ImportError, ValueError):
        spec = None
    finally:
        sys.path.pop(0)
    if spec is None:
        raise _no_module(what)


def imported(module: str, name: str) -> Callable[..., Any]:
    """Import a function for a command, with the traceback of a module that fails."""
    with running(module, " when it was imported"):
        return import_function(module, name)


def function_named(option: str, what: str) -> Callable[..., Any]:
    """Import the function that an option names."""
    named = named_function(what)
    if named is None:
        raise UsageError(f"{option} takes a function as package.module:function, not {what!r}")
    return imported(*named)


def print_their_traceback(error: BaseException) -> None:
    """Print the traceback without the frames of pallas-debug, runpy, importlib and jax."""
    if not tracebacks.is_asked_to_keep():
        tracebacks.remove(error, _is_outside, is_theirs=_is_by_jax(error))
        if type(error.__cause__).__module__.partition(".")[0] == "jax":
            error.__cause__ = None  # jax's note that it removed its own frames
    traceback.print_exception(error)


def _is_by_jax(error: BaseException) -> bool:
    """Return whether jax raised an exception, and removed its own frames from the traceback."""
    notes: list[str] = getattr(error, "__notes__", [])
    cause = type(error.__cause__).__module__.partition(".")[0]
    return cause == "jax" or any("JAX has removed its internal frames" in note for note in notes)


def _is_outside(frame: TracebackType) -> bool:
    module = frame.tb_frame.f_globals.get("__name__", "")
    return module.split(".")[0] in ("runpy", "importlib", "jax", "pallas_debug")
