"""docs/operate.md: every command of the page is run, its examples are parsed, and what it names exists."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cron_machine import CHECKOUT, ID, KEYS, PUBLIC, Machine, Vendors, serving

from retake.alerts.settings import ALERTS
from retake.robots.policies import load_policies
from retake.sandbox.notices import addresses
from retake.settings.schema import read_table

PAGE = (CHECKOUT / "docs" / "operate.md").read_text("utf-8")
COMMANDS = [re.split(r" {2,}#", line)[0].strip() for line in PAGE.splitlines() if re.match(r" {4}python ", line)]


@pytest.fixture(scope="module", name="vendors")
def _vendors() -> Iterator[Vendors]:
    yield from serving(0)


@pytest.fixture(name="machine")
def _machine(vendors: Vendors, tmp_path: Path) -> Iterator[Machine]:
    vendors.as_new()
    machine = Machine(tmp_path, vendors)
    yield machine
    machine.end()


# --- preparations -----------------------------------------------------------------------------------------------------


def a_step_failed(machine: Machine) -> None:
    machine.plant("upscale")
    machine.order("upscale=500")
    machine.tick()
    machine.sandbox.withdraw_orders()


def a_generation_failed(machine: Machine) -> None:
    machine.plant("imagine")
    machine.order("imagine=task-rejected")
    for _ in range(6):
        if not machine.generation_id:
            break
        machine.tick()
    machine.sandbox.withdraw_orders()
    assert machine.files("dead_letters")


def a_channel_is_there(machine: Machine) -> None:
    address = addresses(machine.sandbox.url)["slack"]
    found = re.search(r"https?://\S+?(?=[\"`, ]|$)", str(address))
    machine.set(ALERTS={"channels": {"team": {"kind": "slack"}}})
    machine.env["SLACK_WEBHOOK_URL"] = found[0] if found else str(address)


def a_video_takes_too_long(machine: Machine) -> None:
    """Order a video that never ends, for a generation whose text, pictures and upscale were really made."""
    machine.order("runway=never-ends")
    while not (machine.doc.get("runway_task") or (machine.files("666") and not machine.generation_id)):
        machine.tick()
    machine.sandbox.withdraw_orders()


def a_crash_left_the_flag_up(machine: Machine) -> None:
    machine.plant("upscale")
    machine.put(PUBLIC, {"processing_lock": True, "generation_id": [], "empty": []})


BEFORE: dict[str, Callable[[Machine], None]] = {
    "alerts test": a_channel_is_there,
    "alerts": a_generation_failed,
    "dead-letters": a_generation_failed,
    "runs": a_generation_failed,
    "rollback": a_video_takes_too_long,
    "unlock": a_crash_left_the_flag_up,
    "--resume": a_generation_failed,
}
"""The preparation of a command, by a part of it. Before all others, a step has failed."""

EXPECTED = {
    "python -m retake status": {0, 69},
    "python -m retake rollback RUN --to upscale": {65},
    "python b2_storage_manager.py --diagnose": {0, 75},
}
"""Exit codes of the commands that may end with other codes than 0."""


def prepared(machine: Machine, command: str) -> list[str]:
    before = next((work for part, work in BEFORE.items() if part in command.split("retake", 1)[-1]), a_step_failed)
    before(machine)
    words = {"RUN": machine.generation_id or ID, "ID": ID}
    if "ALERT" in command.split():
        alerts = json.loads(run(machine, ["-m", "retake", "alerts", "list", "--json"]).stdout)["alerts"]
        words["ALERT"] = alerts[0]["id"]
    return [words.get(word, word) for word in shlex.split(command)[1:]]


def run(machine: Machine, words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=CHECKOUT, env=machine.env, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_does_what_it_says(machine: Machine, command: str) -> None:
    done = run(machine, prepared(machine, command))
    told = done.stdout + done.stderr
    assert done.returncode in EXPECTED.get(command, {0}), told
    assert "Traceback" not in told
    assert not [key for key in KEYS.values() if key in told]
    if "--diagnose" in command:
        assert "retake.diagnosis.decision" in done.stderr
    if "--json" in command:
        assert json.loads(done.stdout)
    if "--to upscale --yes" in command:
        assert machine.files("dead_letters")
        assert machine.until_done().exit_code == 0
        assert machine.billed("upscale") == 2
    elif "--to upscale" in command:
        assert "back to upscale gives up" in told
        assert not machine.files("dead_letters")


# --- the page itself --------------------------------------------------------------------------------------------------


def test_the_page_has_the_six_steps_of_the_checklist_and_the_commands_of_each() -> None:
    protocol = (CHECKOUT / "docs" / "protocol.md").read_text("utf-8")
    steps = re.findall(r"^\d\. ", protocol.partition("## Operator checklist")[2].partition("\n## ")[0], re.MULTILINE)
    assert re.findall(r"^### (\d)\. ", PAGE, re.MULTILINE) == [step[0] for step in steps]
    for words in (
        *("doctor", "doctor --test-request", "errors --limit 100", "spend", "breaker show", "retry RUN", "skip RUN"),
        *("rollback RUN --to upscale --yes", "dead-letters requeue ID", "cancel RUN --yes", "alerts list", "mode show"),
    ):
        assert any(command.startswith(f"python -m retake {words}") for command in COMMANDS), words
    assert "python b2_storage_manager.py --diagnose" in COMMANDS


def test_the_channels_of_the_example_are_read_without_a_fault() -> None:
    example = json.loads(PAGE.partition("```json\n")[2].partition("```")[0])
    faults: list[str] = []
    settings = read_table(ALERTS, example["ALERTS"], "ALERTS", faults)
    assert faults == []
    assert [it.name for it in settings.channels] == ["team", "night"]


def test_the_policy_of_the_example_is_read_beside_the_others(tmp_path: Path) -> None:
    shutil.copytree(CHECKOUT / "config" / "policies", tmp_path / "policies")
    text = PAGE.partition("```toml\n")[2].partition("```")[0]
    (tmp_path / "policies" / "NR.NSI.10.toml").write_text(text)
    policy = load_policies(tmp_path / "policies")[tomllib.loads(text)["id"]]
    assert policy.retry.max_retries == 3


def test_what_the_page_names_is_there() -> None:
    for name in re.findall(r"`((?:retake|tests|config|docs)/[\w./]+\w)`", PAGE):
        assert (CHECKOUT / name.replace("NAME.py", "slack.py").replace("NR.NSI.10", "NR.NSI.1")).exists(), name
    for target in re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", PAGE):
        assert (CHECKOUT / "docs" / target).exists(), target


def test_each_link_leads_to_a_heading() -> None:
    for target, anchor in re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", PAGE):
        text = PAGE if not target else (CHECKOUT / "docs" / target).read_text("utf-8")
        headings = [
            re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
            for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        ]
        assert anchor in headings, f"{target}#{anchor}"
