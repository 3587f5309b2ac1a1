"""docs/alerts.md describes every alert, every kind and every key, and its examples are valid settings."""

import json
import re
from importlib import import_module
from pathlib import Path

import pytest
from notices import channel

from retake.alerts.conditions import OF_A_PIPELINE, OF_ALL
from retake.alerts.settings import _KINDS as KINDS
from retake.alerts.settings import ALERTS
from retake.sandbox.notices import addresses
from retake.settings.schema import REQUIRED, read_table

PAGE = (Path(__file__).parents[2] / "docs/alerts.md").read_text("utf-8")
CHANNELS = PAGE.partition("## Channels\n")[2].partition("\n## ")[0]


NOT_HTTP = {"email", "apprise"}  # SMTP and a library, with tests of their own


def section(kind: str) -> str:
    found = CHANNELS.partition(f"### {kind}\n")[2].partition("\n### ")[0]
    assert found, f"docs/alerts.md, Channels: write a section '### {kind}' with its variable and its own keys"
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_has_a_section_with_its_variable_and_its_keys(kind: str) -> None:
    variable, _, own = KINDS[kind]
    row = f"| [`{kind}`](#{kind}) | `{variable}` |"
    assert row in CHANNELS, f"docs/alerts.md, Channels: the table of kinds has no row that begins with {row}"
    assert variable in section(kind), f"docs/alerts.md: the section {kind} does not name {variable}"
    rows = dict(re.findall(r"^\| `(\w+)` \| *(.*?) *\|", section(kind), re.MULTILINE))
    shown = {key: f"`{json.dumps(it.default)}`" if it.default is not REQUIRED else "" for key, it in own.items()}
    assert rows == shown, f"docs/alerts.md: the table in the section {kind} does not show the keys in _KINDS"


def test_each_alert_has_its_row() -> None:
    told = re.findall(r"^\| `(\w+)` \|", PAGE.partition("| code | level |")[2].partition("\n\n")[0], re.MULTILINE)
    known = OF_A_PIPELINE | OF_ALL | {"degraded", "channel_refused", "robot_failed"}
    assert sorted(told) == sorted(known), "docs/alerts.md: the table of alerts has a row for each code, and no other"


def test_the_keys_of_all_kinds_are_named() -> None:
    table = CHANNELS.partition("Every kind has these keys:")[2].partition("\n\n| Kind")[0]
    named = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert named == {"kind", *channel("slack")._fields} - {"name", "options"}


def test_the_example_is_read_without_a_fault() -> None:
    example = json.loads(CHANNELS.partition("```json\n")[2].partition("```")[0])
    faults: list[str] = []
    settings = read_table(ALERTS, example["ALERTS"], "ALERTS", faults)
    assert faults == []
    assert [(it.name, it.kind) for it in settings.channels] == [
        *(("team", "slack"), ("on-call", "pagerduty"), ("night", "sms"), ("office", "email"))
    ]


def test_the_addresses_of_the_sandbox_are_those_that_it_serves() -> None:
    for kind, address in addresses("URL").items():
        row = re.search(rf"^\| {kind} \| .*{re.escape(address)}[\"`]", CHANNELS, re.MULTILINE)
        assert row, f"docs/alerts.md, Try it without the services: no row for {kind} with {address}"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in NOT_HTTP])
def test_each_kind_over_http_has_a_stand_in(kind: str) -> None:
    assert kind in addresses("URL"), "retake/sandbox/notices.py: add its stand-in, and its address to `addresses`"


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_a_module_that_sends(kind: str) -> None:
    module = import_module(f"retake.alerts.channels.{'apprise_urls' if kind == 'apprise' else kind}")
    assert callable(module.send)
    assert module.__doc__
