"""docs/protocol.md agrees with the policies, and every cited section exists."""

import re
from pathlib import Path

import pytest
from protocol_robots import POLICIES

from retake.errors import class_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
HEADINGS = set(re.findall(r"^#+ (.+)$", PAGE, flags=re.MULTILINE))
CITED = re.compile(r"docs/protocol\.md, section[\s#]+\"([^\"]+)\"")
FILES = [*ROOT.glob("retake/**/*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("config/policies/*.toml")]


def section(robot: str) -> str:
    return PAGE.partition(f"\n## {robot}\n")[2].partition("\n## ")[0]


def intervals(robot: str) -> list[float]:
    retry = POLICIES[robot].retry
    count = 10 if retry.max_retries is None else retry.max_retries
    return [retry.backoff.delay_s(number) for number in range(1, count + 1)]


@pytest.mark.parametrize("robot", POLICIES)
def test_a_robots_section_has_its_name_and_its_errors(robot: str) -> None:
    policy = POLICIES[robot]
    assert f"{policy.role}, `{policy.name}`." in section(robot)
    for code, meaning in policy.errors.items():
        assert f"| `{code}` | {class_of(code).value} | {meaning} |" in section(robot)


@pytest.mark.parametrize("robot", [it for it in POLICIES if it != "NR.NSI.8"])
def test_a_robots_section_has_its_intervals_and_its_jitter(robot: str) -> None:
    (row,) = (line for line in section(robot).splitlines() if line.startswith("| Retries |"))
    percent = POLICIES[robot].retry.jitter_percent
    assert ", ".join(f"{delay:g}" for delay in intervals(robot)) in row
    assert (f"± {percent:g} %" if percent else "no jitter") in row


def test_the_two_phases_have_their_delays() -> None:
    assert intervals("NR.NSI.8") == [0, 30]
    assert "two phases, 2 times: 0, and after a validation 30, no jitter" in section("NR.NSI.8")


def test_every_cited_section_exists() -> None:
    cited = {name for path in FILES for name in CITED.findall(path.read_text("utf-8"))}
    assert cited
    assert cited - HEADINGS == set()
