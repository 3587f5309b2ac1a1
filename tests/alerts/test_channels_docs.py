"""docs/alerts.md describes every kind and every key, and its examples are valid settings."""

import json
import re
from importlib import import_module
from pathlib import Path

import pytest
from notices import channel

from retake.alerts.settings import _KINDS as KINDS
from retake.alerts.settings import ALERTS
from retake.sandbox.notices import addresses
from retake.settings.schema import REQUIRED, read_table

PAGE = (Path(__file__).parents[2] / "docs/alerts.md").read_text("utf-8")
CHANNELS = PAGE.partition("## Channels\n")[2].partition("\n## ")[0]


def section(kind: str) -> str:
    return CHANNELS.partition(f"### {kind}\n")[2].partition("\n### ")[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_has_a_section_with_its_variable_and_its_keys(kind: str) -> None:
    variable, _, own = KINDS[kind]
    assert f"| [`{kind}`](#{kind}) | `{variable}` |" in CHANNELS
    assert variable in section(kind)
    rows = dict(re.findall(r"^\| `(\w+)` \| *(.*?) *\|", section(kind), re.MULTILINE))
    shown = {key: f"`{json.dumps(it.default)}`" if it.default is not REQUIRED else "" for key, it in own.items()}
    assert rows == shown


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
        assert re.search(rf"^\| {kind} \| .*{re.escape(address)}[\"`]", CHANNELS, re.MULTILINE), kind


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_a_module_that_sends(kind: str) -> None:
    module = import_module(f"retake.alerts.channels.{'apprise_urls' if kind == 'apprise' else kind}")
    assert callable(module.send)
    assert module.__doc__
