"""Convert Markdown to blocks for a terminal. Supports only the markup that our own reports use."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from retake.console.answer import Block, Facts, Heading, Sentence, Table

if TYPE_CHECKING:
    from markdown_it.token import Token


def blocks_of(markdown: str) -> list[Block]:
    """Return the headings, paragraphs, lists and tables of `markdown`, without the markup."""
    from markdown_it import MarkdownIt

    tokens = MarkdownIt("commonmark").enable("table").parse(markdown)
    return [*_blocks(tokens)]


def _blocks(tokens: Sequence["Token"]) -> Iterator[Block]:
    depth, rows, last = 0, list[list[str]](), ""
    for token in tokens:
        match token.type:
            case "bullet_list_open":
                depth += 1
            case "bullet_list_close":
                depth -= 1
            case "tr_open":
                rows.append([])
            case "table_close":
                yield from _table(rows)
                rows = []
            case "inline" if rows:
                rows[-1].append(_words(token))
            case "inline" if last == "heading_open":
                yield Heading(_words(token))
            case "inline":
                yield Sentence(f"{'- ' if depth else ''}{_words(token)}", indent=2 * max(0, depth - 1))
        last = token.type


def _table(rows: Sequence[Sequence[str]]) -> Iterator[Block]:
    """Yield a table; one without a header is a list of facts."""
    head, *body = rows
    if any(head):
        yield Table(head, body)
    else:
        yield Facts([(label, value) for label, value in body])


def _words(inline: "Token") -> str:
    """Return the text of a line without its markup."""
    kept = {"softbreak": " ", "hardbreak": " "}
    return "".join(kept.get(token.type, token.content) for token in inline.children or [])
