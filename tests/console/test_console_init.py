"""`retake init`: what it writes, that it overwrites nothing, and the next steps it suggests."""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from reading_world import CHECKOUT
from schemas import check_answer

from retake.alerts.settings import VARIABLES
from retake.console.command import main
from retake.images.settings import ENVIRONMENT as OF_IMAGES
from retake.keys import KEYS
from retake.music.settings import MUSIC_KEYS
from retake.settings.reader import ENVIRONMENT
from retake.story.settings import load_settings
from retake.web.settings import ENVIRONMENT as OF_WEB

WRITTEN = {".env.example", "crontab.example", "config/config.json", "config/prompts.json"}


def init(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["init", *map(str, arguments)], prog_name="retake")


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def test_a_new_folder_has_what_a_tick_needs(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there yet"
    result = init(folder)
    assert result.exit_code == 0, result.output
    policies = {f"config/policies/NR.NSI.{number}.toml" for number in range(1, 10)}
    workflows = {"config/workflows/text.json", "config/workflows/outfit.json"}
    assert files(folder) == WRITTEN | policies | workflows
    settings = load_settings({"RETAKE_CONFIG": str(folder / "config/config.json")})
    assert settings == type(settings)(source=settings.source)
    assert f"cd {shlex.quote(str(folder))}" in result.output
    assert "retake doctor" in result.output


def test_by_default_it_is_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README").write_text("of somebody else")
    result = init()
    assert result.exit_code == 0
    assert files(tmp_path) > WRITTEN
    assert "\n  cd " not in result.output


def test_for_programs_it_is_one_document(tmp_path: Path) -> None:
    answer = json.loads(init(tmp_path, "--json").stdout)
    check_answer("init", answer)
    assert (answer["done"], answer["folder"]) == ("init", str(tmp_path))
    assert set(answer["written"]) == files(tmp_path)
    refused = json.loads(init(tmp_path, "--json").stdout)
    assert (sorted(refused), refused["exit_code"]) == (["error", "exit_code"], 65)
    before = CliRunner().invoke(main, ["--json", "init", str(tmp_path / "b")])
    assert json.loads(before.stdout)["done"] == "init"


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_nothing_is_overwritten_and_then_nothing_is_written(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    result = init(tmp_path)
    assert result.exit_code == 65
    assert name in result.stderr
    assert "nothing is overwritten" in result.stderr
    assert files(tmp_path) == {name}
    assert (tmp_path / name).read_text() == "mine"


def test_a_link_that_leads_nowhere_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "crontab.example").symlink_to(tmp_path / "elsewhere")
    assert init(tmp_path).exit_code == 65
    assert not (tmp_path / "elsewhere").exists()


def test_where_a_folder_cannot_be_made_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = init(tmp_path / "file")
    assert result.exit_code == 78
    assert "Not a directory" in result.stderr


def test_a_current_folder_that_was_removed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    result = init()
    assert (result.exit_code, result.stderr.count("\n")) == (78, 1)
    assert "the current folder no longer exists" in result.stderr


def test_a_name_with_a_line_break_is_refused_because_it_would_split_the_line_for_cron(tmp_path: Path) -> None:
    result = init(tmp_path / "a\nb")
    assert result.exit_code == 65
    assert "line break" in result.stderr
    assert files(tmp_path) == set()


def test_what_was_written_before_a_failure_is_removed(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "policies").write_text("a file in the place of the folder")
    result = init(tmp_path)
    assert result.exit_code == 78
    assert files(tmp_path) == {"config/policies"}


def test_the_example_of_env_has_every_variable_and_no_value(tmp_path: Path) -> None:
    init(tmp_path)
    lines = [line for line in (tmp_path / ".env.example").read_text().splitlines() if re.match(r"#?[A-Z]", line)]
    names = [line.lstrip("#").removesuffix("=") for line in lines]
    assert all(re.fullmatch(r"[A-Z][A-Z0-9_]+", name) for name in names)
    assert len(names) == len(set(names))
    assert {*OF_WEB, *OF_IMAGES, *(variable for variable, _ in MUSIC_KEYS.values())} <= set(names)
    assert {*ENVIRONMENT, *VARIABLES, *(name for variables, _ in KEYS.values() for name in variables)} <= set(names)
    told = "".join((CHECKOUT / f"docs/{page}.md").read_text() for page in ("running", "settings", "alerts"))
    assert [name for name in names if f"`{name}`" not in told] == []


def test_a_url_as_the_docs_write_it_survives_the_shell_that_reads_the_keys(tmp_path: Path) -> None:
    [line] = re.findall(r"^    (RETAKE_STORAGE_URL=.*&.*)$", (CHECKOUT / "docs/running.md").read_text(), re.MULTILINE)
    (tmp_path / ".env").write_text(line + "\n")
    script = 'set -a && . ./.env && printf %s "$RETAKE_STORAGE_URL"'
    told = subprocess.run(["/bin/sh", "-c", script], cwd=tmp_path, env={}, capture_output=True, text=True, timeout=60)
    assert told.stdout == "s3://BUCKET/PREFIX?endpoint=URL&region=NAME"
    init(tmp_path / "new")
    assert "single quotes" in (tmp_path / "new/.env.example").read_text()


def test_each_line_for_cron_reads_the_same_variables() -> None:
    pages = ((CHECKOUT / name).read_text() for name in ("docs/running.md", "crontab.example"))
    jobs = [line for page in pages for line in re.findall(r"^ *\*/\d+ \* \* \* \* .*", page, re.MULTILINE)]
    assert len(jobs) >= 2
    assert [job for job in jobs if "set -a; . /etc/retake.env;" not in job] == []


def test_the_crontab_runs_a_tick_of_this_checkout_in_that_folder(tmp_path: Path) -> None:
    folder = tmp_path / "100% mine; it's"
    init(folder)
    text = (folder / "crontab.example").read_text()
    assert text.endswith("\n")
    [job] = [line for line in text.splitlines() if line.startswith("*/5 * * * * ")]
    assert not re.search(r"(?<!\\)%", job)
    words = shlex.split(job.replace("\\%", "%"))
    assert words[7] == str(folder)
    assert str(CHECKOUT / "b2_storage_manager.py") in words


def test_the_crontab_has_a_folder_that_is_not_in_utf_8_as_it_is(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    result = init(os.fsdecode(folder))
    assert result.exit_code == 0, result.output
    with open(folder + b"/crontab.example", "rb") as file:
        assert b"cd '%b' &&" % folder in file.read()


def test_what_it_says_to_do_next_is_a_shells_language(tmp_path: Path) -> None:
    told = init(tmp_path / "a b").output.partition("Next\n")[2].partition("\n\n")[0]
    checked = subprocess.run(["/bin/sh", "-n", "-c", told], capture_output=True, text=True, timeout=60)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_it_is_about_no_channel(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["--channel", "en", "init", str(tmp_path)])
    assert result.exit_code == 2
    assert files(tmp_path) == set()
