"""Worlds in which several things are unusual at once: each page is shown, and each kind of link and button works.

RETAKE_SEED=N makes other worlds.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from acting import PAGE, Site, served
from mixed_worlds import MIXTURES, NO_LEDGER, Mixture, mixed, named
from schemas import check_answer

from retake.testing.logs import CapturedLogs

ANSWERS = {
    "/": "status", "/runs": "runs", "/dead-letters": "dead-letters list", "/spend": "spend", "/kpi": "kpi",
    "/alerts": "alerts list", "/mode": "mode show", "/breakers": "breaker show",
}  # fmt: skip
"""The pages, and the command whose document each has for programs."""

CHOSEN = ("/?q=a", "/runs?status=failed&status=queued&q=1", "/spend?days=3650", "/kpi?window=3650d", "/metrics")

LINKS = 5
"""Maximum number of links of a kind that are followed in each world."""

NO_TEXT = re.compile(r"\b(None|nan|inf|Undefined|Traceback)\b|\{\{|\{%")
"""What no page says; it would be a value that its template does not expect."""


@pytest.mark.parametrize("mixture", MIXTURES, ids=map(str, range(len(MIXTURES))))
def test_whatever_comes_together_each_page_is_shown_and_each_button_answers(mixture: Mixture, tmp_path: Path) -> None:
    with served(mixed(mixture, tmp_path), read_only=mixture["lease"] == "flag left") as site, CapturedLogs() as log:
        texts = {path: page_of(site, path, mixture) for path in [*ANSWERS, *CHOSEN]}
        texts |= {path: page_of(site, path, mixture) for path in followed(texts.values(), [*texts])}
        for path, name in ANSWERS.items():
            check_document(site, path, name, mixture)
        for verb, fields in buttons(texts.values()):
            check_text(f"{verb} {fields}", site.press(verb, **fields), mixture)
    assert [it.getMessage() for it in log.records if it.exc_info] == [], named(mixture)


def page_of(site: Site, path: str, mixture: Mixture) -> str:
    answer = site.browser.get(path, headers=PAGE)
    check_text(path, answer, mixture)
    return answer.text if "html" in answer.headers["content-type"] else ""


def check_text(what: str, answer: Any, mixture: Mixture) -> None:
    """A page says what there is, or, in a sentence, what cannot be read."""
    text = unescape(re.sub(r"<[^>]*>", " ", answer.text.partition("<main")[2]))
    told = f"{what} of {named(mixture)}: {answer.status_code} {text}"
    assert answer.status_code < 500 or (answer.status_code == 503 and NO_LEDGER in text), told
    assert not NO_TEXT.search(text), told


def check_document(site: Site, path: str, name: str, mixture: Mixture) -> None:
    answer = site.program.get(path, headers={"Accept": "application/json"})
    document = answer.json()
    for key in ("page", "pages", "total") if path in ("/runs", "/dead-letters") else ():
        document.pop(key, None)
    if answer.status_code == 200:
        check_answer(name, document)
    else:
        assert list(document) == ["error"], f"{path} of {named(mixture)}"


def followed(texts: Iterable[str], known: Sequence[str]) -> Iterator[str]:
    """Yield some of the links of each kind: to runs, alerts, media, other pages of a list, other windows."""
    links = dict.fromkeys(unescape(it) for text in texts for it in re.findall(r'(?:href|src)="(/[^"#]*)"', text))
    kinds: dict[str, list[str]] = {}
    for link in links:
        if link not in known and not link.startswith("/static/"):
            kinds.setdefault(re.split(r"(?<=.)/|=", link)[0], []).append(link)
    for found in kinds.values():
        yield from found[:: max(1, len(found) // LINKS)]


def buttons(texts: Iterable[str]) -> Iterator[tuple[str, dict[str, list[str]]]]:
    """Yield the verb and the fields of one form of each kind."""
    seen = set[str]()
    for form in (it for text in texts for it in re.findall(r'<form[^>]*action="/actions/.*?</form>', text, re.S)):
        for verb in [it for it in re.findall(r'action="/actions/(\w+)"', form) if it not in seen]:
            seen.add(verb)
            fields: dict[str, list[str]] = {}
            for name, value in re.findall(r'name="(id|channel)" value="([^"]*)"', form):
                fields.setdefault(name, []).append(unescape(value))
            yield verb, {**fields, "id": fields["id"][:1]} if verb == "mode" else fields
