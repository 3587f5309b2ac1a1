"""`retake robots`: the protocols, the faults of policy files, and a robot running on a test clock."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from reading_world import CHECKOUT, in_terminal
from schemas import check_answer

from retake.console.command import main
from retake.robots.policies import MAX_FILE_BYTES, POLICIES, ROBOTS

DOC = (CHECKOUT / "docs" / "robots.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```\n\$ (python -m retake robots play .+)\n((?:.+\n)+)```$", DOC, re.MULTILINE)
TIMEOUT = "ERR_TEMPORARY_API_TIMEOUT"


@pytest.fixture(autouse=True)
def _no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run commands in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RETAKE_CONFIG", raising=False)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["robots", *arguments])


def answer(*arguments: str, exit_code: int = 0) -> Any:
    result = call(*arguments, "--json")
    assert result.exit_code == exit_code, result.output
    document = json.loads(result.stdout)
    check_answer(f"robots {arguments[0]}", document)
    return document


def own_policies(tmp_path: Path) -> Path:
    folder = tmp_path / "config" / "policies"
    shutil.copytree(POLICIES, folder)
    return folder


@pytest.mark.parametrize(("line", "output"), EXAMPLES, ids=lambda text: text.partition("\n")[0][-60:])
def test_the_examples_of_the_doc_are_what_the_command_prints(line: str, output: str) -> None:
    ended = subprocess.run(
        [sys.executable, *shlex.split(line)[1:]],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == (output, "", 0)


def test_the_doc_has_examples() -> None:
    assert len(EXAMPLES) >= 5


def test_the_list_fits_into_80_columns_and_names_every_robot() -> None:
    lines = call("list").output.splitlines()
    assert [line.split()[0] for line in lines] == ["ID", *ROBOTS]
    assert max(map(len, lines)) <= 80
    assert [it["id"] for it in answer("list")["robots"]] == [*ROBOTS]


def test_on_a_terminal_of_80_columns_each_robot_has_a_line() -> None:
    exit_code, output = in_terminal("robots", "list", env={**os.environ, "NO_COLOR": "1"}, width=80)
    assert exit_code == 0
    lines = [line for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output).splitlines() if line.startswith("NR.NSI")]
    assert len(lines) == len(ROBOTS)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("robot", ROBOTS)
def test_show_has_the_whole_protocol(robot: str) -> None:
    document = tomllib.loads((POLICIES / f"{robot}.toml").read_text("utf-8"))
    shown = answer("show", robot)
    assert shown["policy"] == {name: it for name, it in document.items() if isinstance(it, dict)}
    text = call("show", robot).output
    for meaning in document["errors"].values():
        assert meaning in text
    for seconds in document["retry"]["intervals_s"]:
        assert f"{seconds:g}" in text
    for action in document["last_failure"]["actions"]:
        assert action.get("what", "") in text


@pytest.mark.parametrize("robot", ROBOTS)
def test_play_answers_with_the_timeline(robot: str) -> None:
    codes = tomllib.loads((POLICIES / f"{robot}.toml").read_text("utf-8"))["errors"]
    for code in codes:
        document = answer("play", robot, "--fail", f"{code}x2", "--seed", "1")
        assert document.keys() == {"robot", "ended", "timeline"}
        entry = {"at_s", "what", "attempt", "error_code", "wait_s", "action"}
        assert all(it.keys() == entry for it in document["timeline"])
        result = call("play", robot, "--fail", f"{code}x2", "--seed", "1")
        assert (result.exit_code, result.stderr) == (0, "")
        assert all(it["what"] in result.stdout for it in document["timeline"])


def test_a_seed_that_is_chosen_is_printed_and_makes_the_same_play() -> None:
    first = call("play", "NR.NSI.1", "--fail", "APPIUS_UNAVAILABLEx3").output
    (seed,) = re.findall(r"^seed +(\d+)$", first, re.MULTILINE)
    assert call("play", "NR.NSI.1", "--fail", "APPIUS_UNAVAILABLEx3", "--seed", seed).output == first
    assert "seed" in answer("play", "NR.NSI.1")["timeline"][0]["what"]


def test_alerts_go_to_the_channels_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    channels = {"channels": {"our-team": {"kind": "slack", "levels": ["critical"]}}}
    (tmp_path / "config" / "config.json").write_text(json.dumps({"ALERTS": channels}))
    output = call("play", "NR.NSI.2", "--fail", f"{TIMEOUT}x6").output
    assert "alert to our-team (slack): [CRITICAL] NR.NSI.2 failed for good" in output
    assert "those of ALERTS.channels" in output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "NR.NSI.12"), "There is no robot 'NR.NSI.12'. Use one of: NR.NSI.1, "),
        (("play", "nr.nsi.9"), "did you mean NR.NSI.9?"),
        (("play", "\x1b[2J" * 1000), "There is no robot "),
        (("play", "NR.NSI.2", "--fail", "nonsense"), f"its codes: {TIMEOUT}, "),
        (("play", "NR.NSI.2", "--fail", f"{TIMEOUT}x999999999"), "order fewer"),
        (("play", "NR.NSI.2", "--fail", f"{TIMEOUT}x{'9' * 10_000}"), "no such error"),
        (("play", "NR.NSI.2", *["--fail", f"{TIMEOUT}x600"] * 2), "order fewer"),
        (("play", "NR.NSI.2", "--seed", "nonsense"), "--seed"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(arguments: tuple[str, ...], said: str) -> None:
    result = call(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("Error: "))
    assert said in line
    assert len(line) < 700
    assert "\x1b" not in line
    document = json.loads(call(*arguments, "--json").stdout)
    assert (document["exit_code"], said in document["error"]) == (2, True)


def test_sound_policies_have_no_fault(tmp_path: Path) -> None:
    assert call("check").output == "9 policy files checked: no fault.\n"
    assert answer("check")["files"] == [str(POLICIES / f"{robot}.toml") for robot in ROBOTS]
    own_policies(tmp_path)
    assert answer("check")["files"] == [f"config/policies/{robot}.toml" for robot in ROBOTS]


def test_every_fault_is_named_with_file_and_field_or_line(tmp_path: Path) -> None:
    folder = own_policies(tmp_path)
    for robot, old, new in (
        ("NR.NSI.1", "max_retries = 3", "max_retires = 3"),
        ("NR.NSI.2", "ttl_s = 86400", "ttl_s = -1"),
        ("NR.NSI.3", 'id = "NR.NSI.3"', 'id = "NR.NSI.3'),
    ):
        file = folder / f"{robot}.toml"
        file.write_text(file.read_text("utf-8").replace(old, new), "utf-8")
    (folder / "NR.NSI.4.toml").unlink()
    faults = answer("check", exit_code=65)["faults"]
    assert [(it["robot"], it["field"], it["line"]) for it in faults] == [
        ("NR.NSI.1", "retry.max_retires", None),
        ("NR.NSI.1", "retry.max_retries", None),
        ("NR.NSI.2", "cache.ttl_s", None),
        ("NR.NSI.3", "the whole file", 3),
        ("NR.NSI.4", "the whole file", None),
    ]
    assert all("allowed" in it["what"] for it in faults[:3])
    result = call("check")
    assert result.exit_code == 65
    assert "config/policies/NR.NSI.2.toml: NR.NSI.2: cache.ttl_s: found -1, allowed: " in result.output
    assert result.output.endswith("5 faults in 4 of 9 files.\n")
    assert call("list").exit_code == 78
    assert call("check", "config/policies/NR.NSI.5.toml").output == "1 policy file checked: no fault.\n"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        bytes(range(256)) * 10,
        b"a = " + b"[" * 10_000,
        b"[retry]\n" + b".".join([b"a"] * 5000) + b" = 1",
        b"a = " + b"9" * 5000,
        b"#" * (MAX_FILE_BYTES + 1),
        b"".join(b"k%d = 1\n" % number for number in range(1500)),
        "a = \x1b[2J\u202e".encode(),
    ],
)
def test_an_invalid_file_is_refused_line_by_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "NR.NSI.1.toml").write_bytes(content)
    result = call("check", "NR.NSI.1.toml")
    assert (result.exit_code, result.stderr) == (65, "")
    *faults, summary = [line for line in result.stdout.splitlines() if line and not line.startswith("and ")]
    assert 1 <= len(faults) <= 100
    assert all(line.startswith("NR.NSI.1.toml: NR.NSI.1: ") and line.isprintable() for line in faults)
    assert summary.endswith(" in 1 of 1 files.")


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, why in (("folder", "Is a directory"), ("pipe", "not a regular file"), ("none", "missing")):
        result = call("check", name)
        assert result.exit_code == 65
        assert why in result.output
    assert call("check", "/dev/zero").exit_code == 65
    assert call("check", "n" * 5000).exit_code == 65


def test_a_tenth_robot_is_listed_shown_and_played(tmp_path: Path) -> None:
    page = (CHECKOUT / "docs" / "operate.md").read_text("utf-8")
    (own_policies(tmp_path) / "NR.NSI.10.toml").write_text(page.partition("```toml\n")[2].partition("```")[0], "utf-8")
    assert len(answer("list")["robots"]) == 10
    assert answer("show", "NR.NSI.10")["modes"] == [0]
    document = answer("play", "NR.NSI.10", "--fail", "ARCHIVE_UNAVAILABLEx4")
    assert (document["ended"], document["timeline"][-2]["action"]) == ("failed", "dead_letter")


def test_a_command_that_fails_by_its_own_usage_error_is_not_a_bug() -> None:
    result = CliRunner().invoke(main, ["music", "list", "--state", "nonsense"])
    assert (result.exit_code, "Error: There is no state 'nonsense'." in result.stderr) == (2, True)


def test_the_robots_are_loaded_for_their_command_alone() -> None:
    code = "import sys; from retake.console.command import main; main(['runs', '--help'], standalone_mode=False); " \
           "print([name for name in sys.modules if name.startswith('retake.robots')])"  # fmt: skip
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True,
                           env={**os.environ, "PYTHONPATH": str(CHECKOUT)})  # fmt: skip
    assert ended.stdout.splitlines()[-1] == "[]"


def test_several_failures_follow_one_option_or_several() -> None:
    first, second = "ERR_TEMPORARY_DB_CONFLICTx2", "ERR_BUSINESS_VALIDATION_FAILED"
    together = answer("play", "NR.NSI.4", "--fail", first, second, "--seed", "3")
    assert together == answer("play", "NR.NSI.4", "--fail", first, "--fail", second, "--seed", "3")
    codes = [it["error_code"] for it in together["timeline"] if it["error_code"]]
    assert codes[:3] == ["ERR_TEMPORARY_DB_CONFLICT"] * 2 + [second]


@pytest.mark.parametrize("words", [["ERR_X"], ["--fail", "ERR_X", "--fail", "ERR_Y", "ERR_Z"]])
def test_a_word_too_many_is_refused(words: list[str]) -> None:
    result = call("play", "NR.NSI.4", *words)
    assert (result.exit_code, "unexpected extra argument" in result.output) == (2, True)
