"""CHANGELOG.md: traces that a merge of two branches can leave there."""

import re
from collections import Counter
from pathlib import Path

CHANGELOG = (Path(__file__).parent.parent / "CHANGELOG.md").read_text("utf-8")
ENTRIES = [" ".join(it.split()) for it in re.findall(r"^- .*(?:\n  .*)*", CHANGELOG, re.MULTILINE)]


def test_no_entry_stands_there_twice() -> None:
    beginnings = Counter(entry[:60] for entry in ENTRIES)
    assert len(beginnings) > 300
    assert [it for it, times in beginnings.items() if times > 1] == []


def test_every_entry_is_a_whole_sentence() -> None:
    assert [entry for entry in ENTRIES if not entry.endswith(".")] == []
