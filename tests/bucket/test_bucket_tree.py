"""The packages of the bucket: backends import the contract and the claims, but not one another."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUCKET = ROOT / "retake" / "bucket"
FILES = sorted(BUCKET.rglob("*.py"))
MAY_IMPORT = {"directory": set[str](), "claims": set[str](), "b2": {"claims"}, "s3": {"claims"}}


def imported(path: Path, *, at_load: bool) -> Iterator[str]:
    """Yield the packages of the bucket that `path` imports; `at_load`: outside functions only."""
    tree = ast.parse(path.read_text("utf-8"))
    called = {
        inner for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) for inner in ast.walk(node) if at_load
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node not in called:
            package = (node.module or "").removeprefix("retake.bucket.").partition(".")[0]
            if (node.module or "").startswith("retake.bucket.") and package in MAY_IMPORT:
                yield package


def named(path: Path) -> str:
    return str(path.relative_to(BUCKET))


@pytest.mark.parametrize("path", [path for path in FILES if path.parent != BUCKET], ids=named)
def test_a_backend_imports_no_other(path: Path) -> None:
    own = path.parent.name
    assert set(imported(path, at_load=False)) <= MAY_IMPORT[own] | {own}


@pytest.mark.parametrize("path", [path for path in FILES if path.parent == BUCKET], ids=named)
def test_what_all_share_loads_no_backend(path: Path) -> None:
    assert set(imported(path, at_load=True)) == set()


@pytest.mark.parametrize("path", FILES, ids=named)
def test_no_class_has_more_than_fifteen_methods(path: Path) -> None:
    classes = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ClassDef)]
    methods = {cls.name: sum(isinstance(it, ast.FunctionDef) for it in cls.body) for cls in classes}
    assert {name: count for name, count in methods.items() if count > 15} == {}
