"""What `make` promises on a machine that has only Python and make: the shipped Makefile, run for real in a checkout
whose path has spaces, with pins that need no network."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parent.parent
NOTHING_TO_FETCH = "# nothing\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "my check out"
    (folder / "retake").mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", folder)
    (folder / "retake/__init__.py").write_text('"""A package."""\n')
    (folder / "door.py").write_text('"""A script."""\n')
    for pins in ("requirements.txt", "requirements-dev.txt"):
        (folder / pins).write_text(NOTHING_TO_FETCH)
    return folder


@pytest.fixture
def logged_python(tmp_path: Path) -> Path:
    """Return a Python that records its calls in python.log beside it."""
    return script(tmp_path / "python", f'echo "$*" >>"{tmp_path}/python.log"; exec "{sys.executable}" "$@"')


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def environment(checkout: Path, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(checkout.parent), "PIP_CONFIG_FILE": os.devnull} | more


def make(checkout: Path, *arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", *map(str, arguments)],  # noqa: S607  # whichever make the user has
        cwd=checkout,
        env=environment(checkout, **env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def ours(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the recipe's own error message: stderr without make's remarks."""
    return [line for line in done.stderr.splitlines() if not line.startswith("make")]


def environments_made(python: Path) -> int:
    return python.with_name("python.log").read_text().count("-m venv")


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_make_alone_lists_the_targets_and_does_nothing(checkout: Path) -> None:
    done = make(checkout)
    assert done.returncode == 0
    assert {"install", "run", "test", "bench", "clean"} <= targets()
    assert {line.split()[1] for line in done.stdout.splitlines()} == targets()
    assert not (checkout / ".venv").exists()


def test_an_older_python_is_refused_with_what_to_install(checkout: Path, tmp_path: Path) -> None:
    old = script(tmp_path / "old", 'if [ "$1" = --version ]; then echo Python 3.9.2; else exit 1; fi')
    done = make(checkout, "install", f"PYTHON={old}")
    assert done.returncode != 0
    assert ours(done) == [
        f"Python 3.11 or newer is needed, and {old} is Python 3.9.2: "
        "sudo apt install python3.11-venv, then make PYTHON=python3.11"
    ]
    assert not (checkout / ".venv").exists()


def test_a_missing_python_is_named(checkout: Path) -> None:
    done = make(checkout, "run", "PYTHON=python3.99")
    assert done.returncode != 0
    assert len(ours(done)) == 1
    assert "and python3.99 is missing: sudo apt install" in done.stderr


def test_a_debian_without_python3_venv_is_told_the_package(checkout: Path, tmp_path: Path) -> None:
    bare = script(tmp_path / "bare", f'case "$*" in *ensurepip*) exit 1;; esac; exec "{sys.executable}" "$@"')
    done = make(checkout, "test", f"PYTHON={bare}")
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    assert done.returncode != 0
    assert ours(done) == [f"{bare} cannot make virtual environments: sudo apt install {package}"]


def test_without_a_network_one_line_says_so_and_the_next_make_begins_again(checkout: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{unused.getsockname()[1]}/"  # bound but not listening: every connection is refused
        (checkout / "requirements.txt").write_text(f"click==8.1 --hash=sha256:{64 * chr(48)}\n")
        done = make(checkout, "install", f"PYTHON={sys.executable}", PIP_INDEX_URL=nobody)
    assert done.returncode != 0
    assert [line.split(":")[0] for line in ours(done)] == ["No network"]
    assert not (checkout / ".venv/ready").exists()


def test_two_makes_at_once_make_one_environment_with_byte_code_compiled(checkout: Path, logged_python: Path) -> None:
    command = ["make", "tools", f"PYTHON={logged_python}"]
    env = environment(checkout, PYTHONDONTWRITEBYTECODE="1")
    both = [subprocess.Popen(command, cwd=checkout, env=env, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(timeout=120) for process in both] == [0, 0]
    assert environments_made(logged_python) == 1
    assert list(checkout.glob("retake/__pycache__/__init__.*.pyc"))
    assert list(checkout.glob("__pycache__/door.*.pyc"))


def test_the_environment_is_made_once_and_again_when_the_pins_or_the_python_change(
    checkout: Path, logged_python: Path
) -> None:
    def install() -> int:
        done = make(checkout, "install", f"PYTHON={logged_python}")
        assert done.returncode == 0, done.stderr
        return environments_made(logged_python)

    assert install() == 1
    assert install() == 1
    later = (checkout / ".venv/ready").stat().st_mtime + 1
    os.utime(checkout / "requirements.txt", (later, later))
    assert install() == 2
    (checkout / ".venv/bin/python").unlink()  # as if the system's Python had been replaced by a newer one
    assert install() == 3


def test_githubs_cached_environment_is_used_in_a_new_checkout(checkout: Path, logged_python: Path) -> None:
    (job,) = YAML(typ="safe").load(ROOT / ".github/workflows/generate.yml")["jobs"].values()
    cached = [step["run"] for step in job["steps"] if step.get("if") == "steps.venv.outputs.cache-hit == 'true'"]
    assert make(checkout, "install", f"PYTHON={logged_python}").returncode == 0
    later = (checkout / ".venv/ready").stat().st_mtime + 0.01
    os.utime(checkout / "requirements.txt", (later, later))
    time.sleep(0.02)  # the steps' outputs are newer than a fresh checkout
    for command in cached:
        subprocess.run(["/bin/sh", "-ec", command], cwd=checkout, timeout=60, check=True)
    assert make(checkout, "install", f"PYTHON={logged_python}").returncode == 0
    assert environments_made(logged_python) == 1


def test_the_tests_are_lint_format_types_and_pytest_in_this_order() -> None:
    steps = re.findall(r'echo "== ([^"]+)"', make(ROOT, "--dry-run", "test").stdout)
    assert steps[-4:] == ["ruff check", "ruff format --check", "mypy --strict", "pytest"]


ALL = "redis-server rabbitmq-server postgresql"
NONE = {"REDIS": "", "RABBITMQ": "", "INITDB": ""}


def servers(
    checkout: Path, tmp_path: Path, user: int, found: dict[str, str] = NONE, target: str = "servers", **scripts: str
) -> subprocess.CompletedProcess[str]:
    """Return a function that runs `make servers` on a machine with only `found` and these programs; `asked` records the
    calls."""
    quiet = {"systemctl": "echo noise", "update-rc.d": "exit 1", "epmd": "exit 1"}
    for name, body in {"id": f"echo {user}", "sudo": "exit 1", **quiet, **scripts}.items():
        script(tmp_path / name, f'echo "{name} $*" >>"{tmp_path}/asked"; {body}')
    places = {"CLUSTERS": f"{tmp_path}/common/clusters.conf", "POLICY": f"{tmp_path}/policy"}
    there = {"CHROMIUM": "/usr/bin/chromium", "CURL": "", **found, **places}
    path = f"{tmp_path}:{os.environ['PATH']}"
    return make(checkout, target, *(f"{name}={value}" for name, value in there.items()), PATH=path)


def asked(tmp_path: Path, program: str) -> list[str]:
    return [line for line in (tmp_path / "asked").read_text().splitlines() if line.startswith(f"{program} ")]


def test_root_gets_the_servers_from_debian_and_no_cluster_of_postgres(checkout: Path, tmp_path: Path) -> None:
    done = servers(checkout, tmp_path, 0, **{"apt-get": 'echo "noise"'})
    assert (done.returncode, done.stdout, done.stderr) == (0, f"== installing {ALL} for the tests\n", "")
    assert (tmp_path / "common/clusters.conf").read_text() == "create_main_cluster = false\n"
    update, install = asked(tmp_path, "apt-get")
    assert "update" in update
    assert install.endswith(f"install {ALL}")


def test_no_service_of_a_server_is_started_now_or_after_a_reboot(checkout: Path, tmp_path: Path) -> None:
    """Debian's scripts ask policy-rc.d whether they may start a service; 101 means no."""
    done = servers(checkout, tmp_path, 0, **{"apt-get": f'"{tmp_path}/policy" redis-server start; echo "may: $?" >&2'})
    assert (done.returncode, done.stderr) == (0, "")
    assert (checkout / ".venv/apt.log").read_text().count("may: 101") == 2  # update, install
    assert not (tmp_path / "policy").exists()
    disabled = [f"systemctl --root=/ disable {name}" for name in ("redis-server", "rabbitmq-server")]
    assert asked(tmp_path, "systemctl") == disabled
    assert asked(tmp_path, "update-rc.d") == [
        f"update-rc.d {name} disable" for name in ("redis-server", "rabbitmq-server")
    ]


def test_a_policy_of_the_machine_stays(checkout: Path, tmp_path: Path) -> None:
    script(tmp_path / "policy", "exit 104")
    assert servers(checkout, tmp_path, 0, **{"apt-get": "exit 100"}).returncode == 0
    assert (tmp_path / "policy").read_text() == "#!/bin/sh\nexit 104\n"


def test_only_what_is_missing_is_installed(checkout: Path, tmp_path: Path) -> None:
    found = {"REDIS": "/usr/bin/redis-server", "RABBITMQ": "", "INITDB": "/usr/bin/initdb"}
    done = servers(checkout, tmp_path, 0, found, **{"apt-get": "exit 0"})
    assert done.stdout == "== installing rabbitmq-server for the tests\n"
    assert asked(tmp_path, "systemctl") == ["systemctl --root=/ disable rabbitmq-server"]


def test_who_may_use_sudo_without_a_password_gets_the_servers_too(checkout: Path, tmp_path: Path) -> None:
    done = servers(checkout, tmp_path, 1000, **{"apt-get": "exit 0", "sudo": 'shift; "$@"'})
    assert (done.returncode, done.stderr) == (0, "")
    assert "sudo -n sh -c" in (tmp_path / "asked").read_text()
    assert f"install {ALL}" in (tmp_path / "asked").read_text()


@pytest.mark.parametrize("user", [0, 1000])
def test_whoever_cannot_install_the_servers_is_told_in_one_line_and_goes_on(
    checkout: Path, tmp_path: Path, user: int
) -> None:
    done = servers(checkout, tmp_path, user, **{"apt-get": "echo no network >&2; exit 100"})
    assert done.returncode == 0
    assert ours(done) == [f"Missing, and without it tests are skipped: sudo apt install {ALL}"]
    assert not (tmp_path / "policy").exists()


def test_debian_gets_a_browser_and_ubuntu_one_line_that_fetches_one(checkout: Path, tmp_path: Path) -> None:
    """Ubuntu's package installs the snap daemon and, in a container, no browser that starts."""
    found = {**NONE, "CHROMIUM": "", "SNAP": ""}
    assert servers(checkout, tmp_path, 0, found, **{"apt-get": "exit 0"}).stderr == ""
    assert asked(tmp_path, "apt-get")[-1].endswith(f"install {ALL} chromium")
    done = servers(checkout, tmp_path, 0, {**found, "SNAP": "ID=ubuntu"}, **{"apt-get": "exit 0"})
    assert (done.returncode, len(ours(done))) == (0, 1)
    assert "playwright install --with-deps chromium" in done.stderr
    assert asked(tmp_path, "apt-get")[-1].endswith(f"install {ALL}")


def test_servers_that_are_there_are_not_installed(checkout: Path, tmp_path: Path) -> None:
    there = {"REDIS": "/usr/bin/redis-server", "RABBITMQ": "/usr/lib/rabbitmq/bin/rabbitmq-server"}
    for postgres in ({"INITDB": "/usr/bin/initdb"}, {"INITDB": "", "RETAKE_POSTGRES": "/opt/pg/bin"}):
        done = servers(checkout, tmp_path, 0, {**there, **postgres}, **{"apt-get": "exit 0"})
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not (tmp_path / "asked").exists()


def test_the_image_service_is_run_whether_its_servers_could_be_installed_or_not(checkout: Path, tmp_path: Path) -> None:
    """If a server is missing, the command says so in one line and ends with 69."""
    python = checkout / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    script(python, 'case "$*" in *images*) echo "$*" >>seen; echo what to type >&2; exit 69;; esac')
    (checkout / ".venv/ready").touch()
    for user in (0, 1000):
        done = servers(checkout, tmp_path, user, {**NONE, "UP": "--port 9000"}, "images", **{"apt-get": "exit 100"})
        assert done.returncode != 0
        assert ours(done) == ["what to type"]
        assert "Error 69" in done.stderr
    assert (checkout / "seen").read_text() == 2 * "-m retake images up --port 9000\n"


def test_each_run_has_a_bucket_of_its_own(checkout: Path) -> None:
    python = checkout / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    script(python, 'case "$*" in *sandbox*) echo "$RETAKE_STORAGE_URL" >>seen;; esac')
    (checkout / ".venv/ready").touch()
    for _ in range(3):
        assert make(checkout, "run").returncode == 0
    buckets = (checkout / "seen").read_text().split()
    assert len(set(buckets)) == 3
    for url in buckets:
        assert (checkout / url.removeprefix("file:")).parent.is_dir()  # the folder exists, the bucket does not
        assert not (checkout / url.removeprefix("file:")).exists()


def test_status_and_show_look_at_the_latest_demo(checkout: Path) -> None:
    python = checkout / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    runs = '{"runs": [{"task_id": "20260102-0000"}, {"task_id": "20260101-0000"}]}'
    script(python, f"echo \"$RETAKE_STORAGE_URL $*\" >>seen; case \"$*\" in *json*) echo '{runs}' | tr , '\\n';; esac")
    (checkout / ".venv/ready").touch()
    none = make(checkout, "status")
    assert (none.returncode != 0, ours(none)) == (True, ["There is no demo to look at yet: make run makes one"])
    for number, name in enumerate(("20260101-000000", "20260102-000000")):
        (checkout / "demo" / name / "bucket").mkdir(parents=True)
        os.utime(checkout / "demo" / name / "bucket", (number, number))
    for target in (["status"], ["show"], ["show", "RUN=20260101-0000"]):
        done = make(checkout, *target)
        assert done.returncode == 0, done.stderr
    latest = "file:demo/20260102-000000/bucket -m retake"
    seen = [line for line in (checkout / "seen").read_text().splitlines() if "retake" in line and "json" not in line]
    assert [line for line in seen if "compileall" not in line] == [
        f"{latest} status",
        f"{latest} show 20260102-0000",
        f"{latest} show 20260101-0000",
    ]


def test_a_terminal_sees_how_far_the_first_installation_is(checkout: Path, tmp_path: Path) -> None:
    """The stand-in pip takes its time and prints what pip prints. The progress is read once a second."""
    slow = (
        'case "$*" in *"-m venv"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python;;'
        ' *"-m pip"*) echo Collecting one; sleep 5; echo Installing collected packages: one; sleep 4;; esac'
    )
    python = script(tmp_path / "slow", slow)
    (checkout / "requirements.txt").write_text("one==1\ntwo==2\n")
    seen = on_a_terminal(["make", "install", f"PYTHON={python}"], checkout)
    assert "1 of 2 found" in seen
    assert "installing them" in seen
    assert "found" not in make(checkout, "install", f"PYTHON={python}").stdout


def on_a_terminal(command: list[str], checkout: Path) -> str:
    """Return what a command writes to a terminal."""
    inside, outside = os.openpty()
    with subprocess.Popen(command, cwd=checkout, env=environment(checkout), stdout=outside, stderr=outside) as process:
        os.close(outside)
        seen = b""
        with suppress(OSError):  # EIO: the other end is closed everywhere
            while chunk := os.read(inside, 4096):
                seen += chunk
        assert process.wait(60) == 0, seen
    os.close(inside)
    return seen.decode()


def test_clean_leaves_a_bucket_alone(checkout: Path) -> None:
    for kept in ("bucket", "demo", ".venv", "retake/__pycache__"):
        (checkout / kept).mkdir()
    assert make(checkout, "clean").returncode == 0
    assert sorted(path.name for path in checkout.iterdir() if path.is_dir()) == ["bucket", "retake"]
    assert not (checkout / "retake/__pycache__").exists()


def test_the_build_machine_runs_what_everybody_runs(tmp_path: Path) -> None:
    script(tmp_path / "make", f'echo "$PWD $CI $*" >"{tmp_path}/seen"; cat >>"{tmp_path}/seen"')
    path = f"{tmp_path}:{os.environ['PATH']}"
    subprocess.run([ROOT / ".ci/run"], input="typed", text=True, env={"PATH": path}, cwd=tmp_path, check=True)
    assert (tmp_path / "seen").read_text() == f"{ROOT} true test\n"


def test_every_make_command_that_a_page_names_exists() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob(".github/workflows/*"), ROOT / "crontab.example"]
    named = {word for page in pages for word in re.findall(r"(?:`|run: )make ([a-z]+)", page.read_text("utf-8"))}
    assert named
    assert named <= targets()
