"""The tree is tidy: small files with a purpose at the top, rooms that import only what is below them, and no trace of
the machine they were written on."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = sorted(ROOT.glob("retake/**/*.py"))
DOORS = sorted(ROOT.glob("*.py"))
COMMAND = ROOT / "retake" / "__main__.py"
TESTS = sorted(ROOT.glob("tests/**/*.py"))

GROUND = {path.stem for path in ROOT.glob("retake/*.py")} - {"__init__", "__main__"} | {"data", "settings"}
BELOW = {
    "console": {
        "checking",
        "web",
        "story",
        "music",
        "images",
        "operations",
        "kpi",
        "alerts",
        "degraded",
        "robots",
        "ticking",
        "runs",
        "paid",
        "retrying",
        "vendors",
        "bucket",
    },
    "operations": {"checking", "ticking", "alerts", "degraded", "kpi", "runs", "paid", "retrying", "vendors", "bucket"},
    "story": {
        "checking",
        "serving",
        "rabbit",
        "operations",
        "kpi",
        "alerts",
        "degraded",
        "sandbox",
        "vendors",
        "media",
        "ticking",
        "runs",
        "paid",
        "retrying",
        "bucket",
    },
    "music": {
        "checking",
        "serving",
        "operations",
        "kpi",
        "alerts",
        "degraded",
        "sandbox",
        "vendors",
        "media",
        "ticking",
        "runs",
        "paid",
        "retrying",
        "bucket",
    },
    "checking": {"alerts", "degraded", "kpi", "runs", "paid", "retrying", "media", "bucket"},
    "ticking": {"alerts", "degraded", "runs", "paid", "retrying", "bucket"},
    "kpi": {"runs", "retrying", "media", "bucket"},
    "paid": {"degraded", "retrying", "bucket"},
    "degraded": {"alerts", "retrying", "bucket"},
    "alerts": {"vendors", "retrying", "bucket"},
    "robots": {"alerts", "degraded", "runs", "retrying", "bucket"},
    "runs": {"retrying", "bucket"},
    "retrying": {"bucket"},
    "sandbox": {"vendors", "media", "bucket"},
    "testing": {"story", "ticking", "paid", "vendors", "media", "bucket"},
    "vendors": set[str](),
    "media": set[str](),
    "bucket": set[str](),
    "data": set[str](),
    "settings": set[str](),
    "serving": set[str](),
    "rabbit": set[str](),
    "web": {"operations", "serving", "ticking", "alerts", "degraded", "kpi", "runs", "paid", "retrying", "bucket"},
    "images": {
        "checking",
        "serving",
        "rabbit",
        "operations",
        "sandbox",
        "vendors",
        "media",
        "ticking",
        "runs",
        "retrying",
        "bucket",
    },
}
"""What each room may import, besides the ground floor, which every room may import."""

LEAKS = re.compile(
    r"(?<![\w.])/(?:work|root|home|Users)/[\w.]"  # folders of one machine
    r"|/tmp/prob[e]|/\.pyen[v]/"
    r"|pypi\.org|pythonhosted\.org|index[-]url|find[-]links"  # package sources are the user's choice
    r"|\bkey_[0-9a-f]{32}|\bsk-[A-Za-z0-9]{20}"  # keys
)


def ignored(folder: Path) -> list[str]:
    """Return the rules of .gitignore that apply in `folder`; a rule that begins with / applies at the top only."""
    rules = (ROOT / ".gitignore").read_text().split()
    return [".git", *(rule.strip("/") for rule in rules if folder == ROOT or not rule.startswith("/"))]


def committed(folder: Path = ROOT) -> Iterator[Path]:
    """Yield the files that git would not ignore. git itself need not be installed."""
    for path in sorted(folder.iterdir()):
        if any(fnmatch(path.name, rule) for rule in ignored(folder)) or path.is_symlink():
            continue
        if path.is_dir():
            yield from committed(path)
        else:
            yield path


class Function(NamedTuple):
    """A function or method. `self` does not count as a parameter."""

    name: str
    line: int
    lines: int
    parameters: int
    positional: int  # of the parameters: those that can be passed by position


class Class(NamedTuple):
    name: str
    methods: int
    constructors: list[Function]  # including the methods of nested classes


class Module(NamedTuple):
    """The parts of a Python file that these tests examine."""

    has_docstring: bool
    imports: list[tuple[str, str]]  # see `imports`
    classes: list[Class]
    functions: list[Function]


@cache
def module(path: Path) -> Module:
    """Read a file, once per test process: parsing the package takes seconds. The tree itself is not kept, as it takes
    far more memory than the text."""
    tree = ast.parse(path.read_text("utf-8"))
    found = [it for it in _statements(tree) if isinstance(it, ast.ClassDef)]
    return Module(
        ast.get_docstring(tree) is not None,
        [(name, when) for name, when in _imports(tree, "load") if name.startswith("retake.")],
        [Class(it.name, sum(map(_is_function, it.body)), _functions(it, "__init__")) for it in found],
        _functions(tree),
    )


def _blocks(node: ast.AST) -> Iterator[ast.AST]:
    """Return the statements and clauses just below `node`. Expressions, most of a tree, are skipped: they contain no
    imports, classes or named functions."""
    return (it for it in ast.iter_child_nodes(node) if isinstance(it, ast.stmt | ast.excepthandler | ast.match_case))


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    for child in _blocks(node):
        yield child
        yield from _statements(child)


def _imports(node: ast.AST, when: str) -> Iterator[tuple[str, str]]:
    for child in _blocks(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, when) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from ((f"{child.module}.{alias.name}", when) for alias in child.names)
        elif _is_function(child):
            yield from _imports(child, "call")
        elif isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            yield from _imports(child, "types")
        else:
            yield from _imports(child, when)


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _functions(node: ast.AST, name: str | None = None) -> list[Function]:
    """Return the functions within `node`, whose name is given."""
    found = (it for it in _statements(node) if isinstance(it, ast.FunctionDef | ast.AsyncFunctionDef))
    return [_function(it) for it in found if name in (None, it.name)]


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Function:
    given = node.args
    positional = len([it for it in (*given.posonlyargs, *given.args) if it.arg not in ("self", "cls")])
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    return Function(node.name, node.lineno, lines, positional + len(given.kwonlyargs), positional)


def imports(path: Path) -> list[tuple[str, str]]:
    """Return the modules of the project that `path` imports, and when: `load`, `call` (in a function) or `types`
    (never)."""
    return module(path).imports


def room(dotted: str) -> str:
    """`retake.story.tick.x` → `story`."""
    return dotted.split(".")[1]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_a_module_says_at_its_top_what_it_is_for() -> None:
    assert [named(path) for path in [*PACKAGE, *DOORS] if not module(path).has_docstring] == []


PICKED = ("retake", "console", "operations", "vendors")  # these name only some of their files


@pytest.mark.parametrize("path", [path for path in PACKAGE if path.name == "__init__.py"], ids=named)
def test_a_room_that_lists_its_files_lists_them_all(path: Path) -> None:
    listed = set(re.findall(r"\b(\w+)\.py\b", ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""))
    if listed and path.parent.name not in PICKED:
        here = {file.stem for file in path.parent.glob("*.py") if not file.stem.endswith(("__", "_examination"))}
        assert here - listed == set(), f"add them to the list at the top of {named(path)}"


def test_no_file_is_longer_than_a_person_reads_in_one_sitting() -> None:
    lengths = {named(path): len(path.read_text("utf-8").splitlines()) for path in [*PACKAGE, *DOORS, *TESTS]}
    assert {name: length for name, length in lengths.items() if length > 500} == {}


def test_no_function_is_longer_than_a_screen() -> None:
    found = {
        f"{named(path)}:{it.line} {it.name}": it.lines
        for path in [*PACKAGE, *DOORS]
        for it in module(path).functions
        if it.lines > 50
    }
    assert found == {}


def test_each_file_is_named_for_a_noun_of_the_field() -> None:
    drawers = {"util", "utils", "helper", "helpers", "common", "misc", "core", "base"}
    assert [named(path) for path in PACKAGE if drawers & {path.stem, path.parent.name}] == []


def allowed_to(path: Path) -> set[str]:
    """Return the rooms that this file may import from."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return GROUND | ({parts[1]} | BELOW[parts[1]] if len(parts) > 2 else set())


def test_imports_point_down_only() -> None:
    files = [path for path in PACKAGE if path != COMMAND]
    upward = {(named(path), name) for path in files for name, _ in imports(path) if room(name) not in allowed_to(path)}
    assert upward == set(), "these rooms are not below: BELOW at the top of this file, docs/architecture.md"


def test_the_architecture_has_what_each_room_may_import() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8").partition("## The packages")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `([a-z]+)` \|.*\| ?([a-z, ]*)\|$", page, re.MULTILINE))
    assert rows.pop("console").strip() == "all below"
    assert {name: {*cell.replace(",", " ").split()} for name, cell in rows.items()} == {
        name: below for name, below in BELOW.items() if name != "console"
    }


def test_the_command_opens_rooms_only_when_called() -> None:
    opened = {(room(name), when) for name, when in imports(COMMAND)}
    assert opened == {("console", "call"), ("logs", "call"), ("output", "call"), ("story", "call")}


def test_the_story_reaches_the_sandbox_from_one_place_and_only_when_asked() -> None:
    users = {
        (path.name, when)
        for path in PACKAGE
        if path.parent.name == "story"
        for name, when in imports(path)
        if room(name) == "sandbox" and when != "types"
    }
    assert users == {("command.py", "call")}


@pytest.mark.parametrize("path", DOORS, ids=named)
def test_a_door_opens_into_one_room(path: Path) -> None:
    wanted = "music" if path.stem == "music_service" else "story"
    assert {room(name) for name, _ in imports(path)} - GROUND == {wanted}


def test_each_file_of_the_tests_has_a_name_of_its_own() -> None:
    """Test files are imported by their bare names: the second of two with the same name would be the first."""
    names = Counter(path.name for path in TESTS)
    assert {name for name, count in names.items() if count > 1} <= {"conftest.py"}


def test_nothing_of_one_machine_is_in_the_tree() -> None:
    found = []
    for path in committed():
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue  # a picture, a font
        found += [f"{named(path)}:{number}" for number, line in enumerate(text.splitlines(), 1) if LEAKS.search(line)]
    assert found == []


@pytest.mark.parametrize(
    "line",
    ["cd /" + "home/ann/retake", "see /" + "root/.config", "--find" + "-links=x", "https://pypi" + ".org/simple"],
)
def test_a_line_that_names_one_machine_would_be_found(line: str) -> None:
    assert LEAKS.search(line)


def test_operations_know_no_pipeline() -> None:
    """Code that shows pipelines and takes orders for them reaches each one through its port alone."""
    users = {path.name for path in PACKAGE if path.parent.name == "operations"}
    assert "port.py" in users
    imported = {room(name) for path in PACKAGE if path.parent.name == "operations" for name, _ in imports(path)}
    assert imported & {"story", "robots", "sandbox", "console"} == set()


def test_the_console_reaches_the_story_from_few_places() -> None:
    users = {
        (path.name, name.rpartition(".")[0])
        for path in PACKAGE
        if path.parent.name == "console"
        for name, _ in imports(path)
        if room(name) == "story"
    }
    assert users == {
        ("command_context.py", "retake.story.settings"),
        ("command_context.py", "retake.story.operations"),
        ("command_context.py", "retake.story.settings"),
        ("doctor.py", "retake.story.settings"),
        ("doctor.py", "retake.story.operator_checks"),
    }


# --- classes and functions ------------------------------------------------------------------------------------------

MANY_METHODS = {"MidjourneyDocument"}
"""The class with more than 15 methods: the document has a property for each of its keys."""

MANY_PARAMETERS = {
    "error_record",  # creates a record, by keyword
    "move",  # of a ledger: its parameters are public
}
"""Functions other than constructors that have more than six parameters."""


def classes() -> Iterator[tuple[Path, Class]]:
    return ((path, it) for path in PACKAGE for it in module(path).classes)


def test_a_class_name_has_one_meaning() -> None:
    places: dict[str, list[str]] = {}
    for path, it in classes():
        places.setdefault(it.name.lstrip("_"), []).append(named(path))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_no_class_does_everything() -> None:
    counts = {f"{named(path)} {it.name}": it.methods for path, it in classes() if it.name not in MANY_METHODS}
    assert {name: count for name, count in counts.items() if count > 15} == {}


def test_no_function_has_more_than_six_parameters() -> None:
    found = {
        f"{named(path)} {it.name}": it.parameters
        for path in PACKAGE
        for it in module(path).functions
        if it.name not in {"__init__", *MANY_PARAMETERS}
    }
    assert {name: count for name, count in found.items() if count > 6} == {}


def test_a_constructor_of_many_parameters_is_called_by_keyword() -> None:
    found = {
        f"{named(path)} {it.name}": constructor.positional for path, it in classes() for constructor in it.constructors
    }
    assert {name: count for name, count in found.items() if count > 6} == {}
