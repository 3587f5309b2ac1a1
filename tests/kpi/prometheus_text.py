"""A strict parser of Prometheus' text format, version 0.0.4: whatever a scrape would refuse is an AssertionError.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

import re
from typing import NamedTuple

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"')
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? ([^ ]+)( -?[0-9]+)?")
ENDS = {"summary": ("_sum", "_count"), "histogram": ("_sum", "_count", "_bucket")}
ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


class Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


class Family(NamedTuple):
    kind: str
    samples: list[Sample]


def parsed(text: str) -> dict[str, Family]:
    """Return the families by name; each must have its HELP, its TYPE and then all of its samples."""
    assert text.endswith("\n")
    families: dict[str, Family] = {}
    helped, present, seen = "", "", set[tuple[str, frozenset[tuple[str, str]]]]()
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            helped, _, what = line.removeprefix("# HELP ").partition(" ")
            assert re.fullmatch(NAME, helped), line
            assert (helped in families, bool(what)) == (False, True), line
        elif line.startswith("# TYPE "):
            present, kind = line.removeprefix("# TYPE ").split(" ")
            assert present == helped, line
            assert kind in ("counter", "gauge", "summary", "histogram", "untyped"), line
            assert (kind == "counter") == present.endswith("_total"), line
            families[present] = Family(kind, [])
        else:
            sample = _sample(line)
            kind = families[present].kind
            assert sample.name in [present + end for end in ENDS.get(kind, ("",))], line
            identity = sample.name, frozenset(sample.labels.items())
            assert identity not in seen, line
            seen.add(identity)
            assert kind != "counter" or sample.value >= 0, line
            families[present].samples.append(sample)
    return families


def _sample(line: str) -> Sample:
    match = SAMPLE.fullmatch(line)
    assert match, line
    labels: dict[str, str] = {}
    rest = match[2] or ""
    while rest:
        label = LABEL.match(rest)
        assert label, line
        assert label[1] not in {*labels, "__name__"}, line
        labels[label[1]] = re.sub(r'\\[\\"n]', lambda it: ESCAPES[it[0]], label[2])
        rest = rest[label.end() :]
        assert not rest or (rest[0] == "," and len(rest) > 1), line
        rest = rest[1:]
    return Sample(match[1], labels, float(match[3]))
