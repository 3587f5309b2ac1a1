"""Everything public in the library that a program in examples/ uses has an example in its docstring, and the example
runs.

The programs themselves say what they use.
"""

import ast
import doctest
import inspect
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from retake.runs.sql_ledger import SqlLedger

PROGRAMS = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


def imported(program: ast.Module) -> dict[str, Any]:
    """Return what the program imports from the library, by its name in the program."""
    return {
        alias.asname or alias.name: getattr(import_module(node.module), alias.name)
        for node in ast.walk(program)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("retake")
        for alias in node.names
    }


def made_by(it: Any) -> type | None:
    """Return the class of the object that calling `it` returns, whose methods a program can call."""
    returned = it if inspect.isclass(it) else getattr(it, "__annotations__", {}).get("return")
    if isinstance(returned, str):  # a name imported for the type checker alone is missing at run time
        returned = vars(sys.modules[it.__module__]).get(returned)
    return returned if inspect.isclass(returned) else None


def called(program: ast.Module) -> Iterator[Callable[..., Any]]:
    """Yield the functions, classes and methods of the library that the program calls, without exceptions."""
    names = imported(program)
    calls = [node.func for node in ast.walk(program) if isinstance(node, ast.Call)]
    for name in sorted({it.id for it in calls if isinstance(it, ast.Name)} & names.keys()):
        if not (inspect.isclass(names[name]) and issubclass(names[name], BaseException)):
            yield names[name]
    owners = {owner for it in names.values() if (owner := made_by(it)) and owner.__module__.startswith("retake")}
    methods = {it.attr for it in calls if isinstance(it, ast.Attribute)}
    for owner in sorted(owners, key=lambda it: it.__qualname__):
        yield from (method for name, method in vars(owner).items() if name in methods and inspect.isfunction(method))


CALLED = {
    f"{it.__module__}.{it.__qualname__}": it for path in PROGRAMS for it in called(ast.parse(path.read_text("utf-8")))
}


def test_what_the_programs_call_is_found() -> None:
    assert {"retake.bucket.open_bucket", "retake.retrying.guard.Guard", "retake.robots.robot.Robot.run"} <= {*CALLED}
    assert len(CALLED) >= 25


@pytest.mark.parametrize("name", CALLED)
def test_its_docstring_has_an_example_that_is_true(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # examples create their buckets and databases in the current folder
    it = CALLED[name]
    module = sys.modules[it.__module__]
    tests = doctest.DocTestFinder(recurse=False).find(it, name, module, globs=dict(vars(module)))
    assert sum(len(test.examples) for test in tests) > 0, f"{name} has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in tests:
        runner.run(test, clear_globs=False)
        for made in test.globs.values():
            if isinstance(made, SqlLedger):
                made.close()
    assert runner.summarize(verbose=False).failed == 0, capsys.readouterr().out
