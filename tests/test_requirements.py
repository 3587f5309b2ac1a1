"""pyproject.toml states ranges, the requirements files pin one version in each, and both agree with each other, with
what the code imports, and with what the libraries themselves need."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import files, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from retake.extras import EXTRAS

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPTIONAL = {extra: [Requirement(text) for text in texts] for extra, texts in PROJECT["optional-dependencies"].items()}
TOOLS = OPTIONAL.pop("dev")
ALWAYS = [Requirement(text) for text in PROJECT["dependencies"]]
SHIPPED = [*ALWAYS, *(requirement for extra in OPTIONAL.values() for requirement in extra)]
NOT_IMPORTED = {
    "check-jsonschema",
    "flask",
    "flask-cors",
    "mypy",
    "ruff",
    "pytest-xdist",
    "setuptools",
    "types-requests",
}
"""Tools that are run as programs, or only need to be installed (moto's server needs flask, a wheel needs
setuptools)."""

IMPORTED_BY_OTHERS = {"async-timeout"}
"""Shipped for other libraries only: redis needs it before Python 3.11.3, so on Debian 12."""

OLDEST = {"python_full_version": "3.11.0", "python_version": "3.11"}
"""The oldest supported Python: some libraries need more there."""


def lines(name: str) -> list[str]:
    """Return the requirements of a file, with continued lines joined."""
    text = (ROOT / name).read_text().replace("\\\n", "")
    return [" ".join(line.split()) for line in text.splitlines() if not line.startswith("#")]


def pins(name: str) -> dict[str, str]:
    found = dict(line.split(" ")[0].split("==") for line in lines(name) if line != "-r requirements.txt")
    return {canonicalize_name(library): version for library, version in found.items()}


def names(requirements: Iterable[Requirement]) -> set[str]:
    return {canonicalize_name(requirement.name) for requirement in requirements}


def needed(library: str) -> Iterator[str]:
    """Yield the libraries that `library` needs on this Python or the oldest, with the declared extras."""
    extras = next((it.extras for it in [*SHIPPED, *TOOLS] if canonicalize_name(it.name) == library), set())
    for text in requires(library) or []:
        requirement = Requirement(text)
        given = [{"extra": it, **python} for it in ["", *extras] for python in ({}, OLDEST)]
        if requirement.marker is None or any(map(requirement.marker.evaluate, given)):
            yield canonicalize_name(requirement.name)


@cache
def modules_of(file: Path) -> frozenset[str]:
    """Return the full names of the modules that a file imports."""
    modules = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module)
    return frozenset(modules)


def imported(files: Iterable[Path]) -> set[str]:
    """Return the libraries that `files` import, without the standard library, the project and each other."""
    files = list(files)
    modules = {module for file in files for module in modules_of(file)}
    flat = [file for file in files if not file.is_relative_to(ROOT / "retake")]  # packages with other modules' names
    ours = {file.stem for file in [*flat, *ROOT.glob("*.py")]} | {file.parent.name for file in flat}
    own = sys.stdlib_module_names | {"retake", "bench"} | ours
    return {canonicalize_name(it) for name in modules if name.partition(".")[0] not in own for it in owners_of(name)}


distributions = cache(packages_distributions)


@cache
def owners_of(module: str) -> list[str]:
    """Return the distributions that a module may come from; for a namespace such as google, those that provide its next
    part."""
    root, _, rest = module.partition(".")
    owners = distributions().get(root, [f"{root}, not installed"])
    part = f"{root}/{rest.partition('.')[0]}"
    return (
        owners
        if len(set(owners)) == 1
        else [it for it in owners if any(str(file).startswith((f"{part}/", f"{part}.")) for file in files(it) or [])]
    )


def test_the_requirements_files_hold_exact_pins_with_hashes_and_nothing_else() -> None:
    assert lines("requirements-dev.txt").pop(0) == "-r requirements.txt"
    for line in [*lines("requirements.txt"), *lines("requirements-dev.txt")[1:]]:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.]*( --hash=sha256:[0-9a-f]{64})+", line), line
    assert not pins("requirements.txt").keys() & pins("requirements-dev.txt").keys()


def test_each_range_has_a_pin_inside_it() -> None:
    for requirement in SHIPPED:
        assert pins("requirements.txt")[canonicalize_name(requirement.name)] in requirement.specifier, requirement
    every = pins("requirements.txt") | pins("requirements-dev.txt")  # a shipped file may need a tool too
    for requirement in TOOLS:
        assert every[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def test_each_pin_is_declared_or_needed_by_another_and_nothing_needed_is_left_unpinned() -> None:
    shipped, tools = pins("requirements.txt"), pins("requirements-dev.txt")
    assert shipped.keys() == names(SHIPPED) | {name for library in shipped for name in needed(library)}
    assert (shipped | tools).keys() == names([*SHIPPED, *TOOLS]) | {
        name for library in shipped | tools for name in needed(library)
    }


def test_what_the_package_imports_is_what_it_declares() -> None:
    assert imported([*ROOT.glob("retake/**/*.py"), *ROOT.glob("*.py")]) == names(SHIPPED) - IMPORTED_BY_OTHERS


@pytest.mark.parametrize("extra", OPTIONAL)
def test_an_extra_is_imported_where_it_is_needed_and_nowhere_else(extra: str) -> None:
    places: dict[str, list[Path]] = {
        "b2": [*ROOT.glob("retake/bucket/b2/*.py"), *ROOT.glob("retake/sandbox/b2*.py")],
        "s3": [*ROOT.glob("retake/bucket/s3/*.py")],
        "postgres": [ROOT / "retake/runs/database.py"],
        "apprise": [ROOT / "retake/alerts/channels/apprise_urls.py"],
        "music": [
            *ROOT.glob("retake/music/*.py"),
            *ROOT.glob("retake/serving/*.py"),
            *ROOT.glob("retake/vendors/[ty][eo]*.py"),
        ],
        "images": [
            *ROOT.glob("retake/images/**/*.py"),
            *ROOT.glob("retake/rabbit/*.py"),
            *ROOT.glob("retake/serving/*.py"),
            ROOT / "retake/vendors/comfyui_events.py",
            ROOT / "retake/sandbox/comfyui_socket.py",
        ],
        "web": [*ROOT.glob("retake/web/*.py"), *ROOT.glob("retake/serving/*.py")],
    }
    shared = {name for other in OPTIONAL if other != extra for name in names(OPTIONAL[other])}
    others = [path for path in [*ROOT.glob("retake/**/*.py"), *ROOT.glob("*.py")] if path not in places[extra]]
    assert names(OPTIONAL[extra]) - IMPORTED_BY_OTHERS <= imported(places[extra]) - names(ALWAYS)
    assert not (names(OPTIONAL[extra]) - shared) & imported(others)


def test_each_extra_is_one_that_a_message_can_name() -> None:
    owners = packages_distributions()
    named = {extra: {canonicalize_name(owner) for owner in owners[module]} for extra, module in EXTRAS.items()}
    assert named.keys() == OPTIONAL.keys()
    assert all(named[extra] & names(OPTIONAL[extra]) for extra in named)


def test_no_extra_is_taken_for_another_that_shares_a_library() -> None:
    owners = packages_distributions()
    for extra, module in EXTRAS.items():
        told_by = {canonicalize_name(owner) for owner in owners[module]}
        also = [other for other in OPTIONAL if told_by & names(OPTIONAL[other])]
        assert all(names(OPTIONAL[extra]) <= names(OPTIONAL[other]) for other in also), extra


def test_whoever_installs_the_package_is_told_of_every_extra() -> None:
    [told] = re.findall(r"^The extras are .*?;", (ROOT / "docs/running.md").read_text(), re.MULTILINE | re.DOTALL)
    assert {*re.findall(r"`(\w+)`", told)} == OPTIONAL.keys() - {"dev"}


def test_the_pins_are_made_with_every_extra() -> None:
    command = (ROOT / "Makefile").read_text().partition("COMPILE = ")[2].partition("\n\n")[0]
    assert set(re.findall(r"--extra (\w+)", command)) == OPTIONAL.keys()


def test_what_the_tests_import_is_declared() -> None:
    used = imported([*ROOT.glob("tests/**/*.py"), *ROOT.glob("bench/*.py")])
    assert used <= names([*SHIPPED, *TOOLS])
    assert names(TOOLS) - NOT_IMPORTED <= used


def test_what_is_measured_beside_it_is_pinned_apart() -> None:
    wanted = {requirement.split("[")[0] for requirement in lines("bench/peers/requirements.in")}
    programs = {path.stem.removeprefix("with_") for path in ROOT.glob("bench/peers/with_*.py")} - {"retake"}
    assert len(programs) == 5
    assert programs <= wanted <= pins("bench/peers/requirements.txt").keys()
