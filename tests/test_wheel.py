"""The package as people install it: a wheel, built from the committed files, in an environment of its own, used in a
folder unrelated to the checkout. No network: the libraries are those that the tests run with."""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

import retake
from retake.data import packaged_file
from retake.extras import EXTRAS
from retake.keys import KEYS
from retake.settings.reader import ENVIRONMENT

ROOT = Path(__file__).parent.parent
[BACKEND] = map(Requirement, tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"])
HEAVY = ("ast", "click", "dataclasses", "inspect", "pythonjsonlogger", "rich", "requests", "uuid", "PIL")
OURS = ("retake.bucket.scanning", "retake.console", "retake.sandbox")
"""What no idle tick may load."""
OWN_PIPELINE = ROOT / "tests" / "own_poems.py"
BUILT_FROM = ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "docs", "examples", "retake")


def backend() -> str | None:
    """Return the version of the build backend in the tests' environment."""
    try:
        return version(BACKEND.name)
    except PackageNotFoundError:
        return None


pytestmark = pytest.mark.skipif(
    not BACKEND.specifier.contains(backend() or "0"), reason=f"building needs {BACKEND}, installed is {backend()}"
)


def run(*command: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RETAKE_", "PYTHON"))}
    env = {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **variables}
    return subprocess.run([*command], cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)


def pip(*arguments: str | Path, cwd: Path) -> None:
    """Run this environment's pip without network, with the build backend on its path."""
    path = os.pathsep.join(filter(None, sys.path))
    done = run(sys.executable, "-m", "pip", *arguments, "--no-index", "--no-deps", "-q", cwd=cwd, PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheel and an environment in which it is installed; all test processes share it."""
    own = tmp_path_factory.getbasetemp()
    place = (own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own) / "wheel"
    place.mkdir(exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "ready").exists():
            _install(place)
            (place / "ready").touch()
    return place


def _install(place: Path) -> None:
    source = place / "source"
    source.mkdir()
    for name in BUILT_FROM:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source)
    pip("wheel", "--no-build-isolation", "-w", place, source, cwd=place)
    [wheel] = place.glob("*.whl")
    venv.create(place / "env", symlinks=True)
    pip("--python", place / "env/bin/python", "install", wheel, cwd=place)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(place / "env"), "platbase": str(place / "env")}))
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    shutil.rmtree(source)


@pytest.fixture
def command(place: Path) -> Path:
    return place / "env/bin/retake"


@pytest.fixture
def python(place: Path) -> Path:
    return place / "env/bin/python"


def test_the_wheel_holds_every_module_and_all_its_data(place: Path) -> None:
    [wheel] = place.glob("*.whl")
    held = {name for name in ZipFile(wheel).namelist() if name.startswith("retake/")}
    shipped = {path for path in (ROOT / "retake").rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert held == {str(path.relative_to(ROOT)) for path in shipped}


def test_the_pages_that_messages_name_come_with_it(place: Path) -> None:
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "retake").rglob("*.py"))
    named = set(re.findall(r"docs/[\w/-]+\.md", sources))
    assert len(named) > 10
    there = place / "env/share/doc/retake"
    assert {it for it in named if not (there / it).is_file()} == set()


def test_the_programs_of_the_library_s_page_come_with_it_and_run(place: Path, python: Path, tmp_path: Path) -> None:
    there = place / "env/share/doc/retake/examples"
    programs = sorted((ROOT / "examples").glob("*.py"))
    assert sorted(path.name for path in there.glob("*.py")) == [path.name for path in programs]
    for name in ("paid_call.py", "tenth_robot.py"):
        told = run(python, str(there / name), cwd=tmp_path)
        assert (told.returncode, told.stderr) == (0, ""), told


def test_the_command_is_the_module(command: Path, python: Path, tmp_path: Path) -> None:
    told = run(command, "--version", cwd=tmp_path)
    assert (told.returncode, told.stdout) == (0, f"retake {retake.__version__}\n")
    assert run(python, "-m", "retake", "--version", cwd=tmp_path).stdout == told.stdout
    assert run(command, "statsu", cwd=tmp_path).returncode == 2
    for name in ("tick", "content", "media", "fetch"):
        assert run(command, name, "--help", cwd=tmp_path).stdout.startswith(f"Usage: retake {name} ")


def test_bash_completes_commands_and_options_after_the_line_of_the_docs(command: Path, tmp_path: Path) -> None:
    line = next(it.strip() for it in (ROOT / "docs/running.md").read_text().splitlines() if "_RETAKE_COMPLETE" in it)
    on_path = f"{command.parent}:{os.environ['PATH']}"
    for words, completed in (
        ("retake dead-l", ["dead-letters"]),
        ("retake tick --dr", ["--dry-run"]),
        ("retake breaker r", ["reset"]),
    ):
        asked = f"{line}; COMP_WORDS=({words}); COMP_CWORD={len(words.split()) - 1}; _retake_completion"
        told = run("bash", "-euc", f'{asked} retake; printf "%s\\n" "${{COMPREPLY[@]}}"', cwd=tmp_path, PATH=on_path)
        assert (told.stdout.split(), told.stderr) == (completed, ""), words


def test_the_policies_come_with_it(python: Path, tmp_path: Path) -> None:
    code = "import retake.robots; print(retake.__file__, *retake.robots.load_policies())"
    told = run(python, "-c", code, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    source, *robots = told.stdout.split()
    assert not Path(source).is_relative_to(ROOT)
    assert robots == [f"NR.NSI.{number}" for number in range(1, 10)]


def test_an_empty_folder_becomes_one_that_makes_a_generation(command: Path, tmp_path: Path) -> None:
    """init, a dry run, a whole generation against the sandbox, and `status`, all without the extras."""
    folder, variables = tmp_path / "a channel", {names[0]: "a-key" for names, _ in KEYS.values()}
    (tmp_path / "no extras").mkdir()
    for module in (*EXTRAS.values(), "botocore"):
        (tmp_path / "no extras" / f"{module}.py").write_text("raise ModuleNotFoundError")
    variables["PYTHONPATH"] = str(tmp_path / "no extras")
    done = run(command, "init", folder, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    packaged = Path(packaged_file("config"))
    for path in packaged.rglob("*.*"):
        assert (folder / "config" / path.relative_to(packaged)).read_bytes() == path.read_bytes()
    told = {line.lstrip("#").partition("=")[0] for line in (folder / ".env.example").read_text().splitlines()}
    assert {*ENVIRONMENT, *(name for names, _ in KEYS.values() for name in names)} <= told
    assert str(command) in (folder / "crontab.example").read_text()

    again = run(command, "init", folder, cwd=tmp_path)
    assert (again.returncode, "nothing is overwritten" in again.stderr) == (65, True)

    dry = run(command, "tick", "--dry-run", cwd=folder, **variables)
    assert dry.returncode == 0, dry.stderr
    assert "begin a new generation" in dry.stdout
    assert not (folder / "bucket").exists()

    settings = json.loads((folder / "config/config.json").read_text())
    settings["VIDEO"]["runway_duration"] = 2  # a short one is drawn faster
    (folder / "config/config.json").write_text(json.dumps(settings))
    on_path = {**variables, "PATH": f"{command.parent}:{os.environ['PATH']}"}
    made = run(command, "tick", "--sandbox", "--until-done", "--interval", "0.1", cwd=folder, **on_path)
    assert made.returncode == 0, made.stderr
    assert made.stdout.partition("To look closer\n")[2].splitlines()[0] == "  retake status"
    assert {path.suffix for path in (folder / "bucket/666").iterdir()} == {".json", ".png", ".mp4"}

    status = run(command, "status", "--json", cwd=folder, **variables)
    assert status.returncode == 0, status.stderr
    assert json.loads(status.stdout)["pipelines"][0]["runs"]["succeeded"] == 1


@pytest.fixture
def idle(command: Path, tmp_path: Path) -> Path:
    """Return a folder made by init whose bucket leaves nothing to do."""
    folder = tmp_path / "all 100% ready"
    assert run(command, "init", folder, cwd=tmp_path).returncode == 0
    for name in ("444", "555", "666"):
        (folder / "bucket" / name).mkdir(parents=True)
        for suffix in ("json", "png", "mp4"):
            (folder / "bucket" / name / f"20250101-0{name}.{suffix}").write_text("{}")
    (folder / "bucket/config").mkdir()
    (folder / "bucket/config/config_gen.json").write_text('{"generation_id": null}')
    return folder


def test_the_crontab_that_init_writes_runs_a_tick_with_the_variables_of_env(idle: Path, tmp_path: Path) -> None:
    variables = (idle / ".env.example").read_text().replace("#RETAKE_STORAGE_URL=", "RETAKE_STORAGE_URL=file:bucket")
    (idle / ".env").write_text(variables)
    [job] = [line for line in (idle / "crontab.example").read_text().splitlines() if line.startswith("*/5")]
    shell = job.split(maxsplit=5)[5].replace("\\%", "%")  # as cron does
    ran = run("/bin/sh", "-c", shell, cwd=Path("/"), HOME=str(tmp_path))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert "nothing to do" in (tmp_path / "retake.log").read_text()


def test_an_idle_tick_loads_what_that_of_a_checkout_loads(command: Path, idle: Path) -> None:
    def loaded(*words: str | Path) -> set[str]:
        tick = run(*words, cwd=idle, PYTHONPROFILEIMPORTTIME="1")
        assert (tick.returncode, "nothing to do" in tick.stderr) == (0, True), tick.stderr
        lines = [line for line in tick.stderr.splitlines() if line.startswith("import time:")]
        return {name for line in lines if (name := line.rpartition("|")[2].strip()).startswith(("retake", *HEAVY))}

    installed = loaded(command, "tick")
    assert installed - {"retake.__main__"} == loaded(sys.executable, ROOT / "b2_storage_manager.py")
    of_logging = run(sys.executable, "-c", "import logging, sys; print(*sys.modules)", cwd=idle).stdout.split()
    assert [name for name in installed if name.startswith((*HEAVY, *OURS)) and name not in of_logging] == []


def test_a_pipeline_of_ones_own_is_found_beside_the_settings_by_the_console_and_imported_by_no_tick(
    command: Path, idle: Path
) -> None:
    settings = json.loads((idle / "config/config.json").read_text())
    (idle / "config/config.json").write_text(json.dumps({**settings, "PIPELINES": {"poems": "poems:Poems"}}))
    (idle / "poems.py").write_text(f"{OWN_PIPELINE.read_text()}\nopen('imported', 'w').close()\n")
    tick = run(command, "tick", cwd=idle)
    assert (tick.returncode, "nothing to do" in tick.stderr, (idle / "imported").exists()) == (0, True, False)
    told = run(command, "status", "--channel", "poems", cwd=idle)
    assert (told.returncode, told.stdout.splitlines()[0]) == (0, "poems: poem-1: rhyming"), told.stderr
    assert (idle / "imported").exists()
