"""The package's JSON Schemas, checked with an independent validator.

check("answer_status", document)    # an AssertionError says where the document differs
"""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import click
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from retake.console.command import main

FOLDER = Path(__file__).parent.parent / "retake" / "schemas"
SCHEMAS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))
}

ANSWERS = {
    "init": ["answer_init"],
    "status": ["answer_status"],
    "runs": ["answer_runs"],
    "show": ["answer_show"],
    "errors": ["answer_errors"],
    "spend": ["answer_spend", "answer_spend_latest_day"],
    "kpi": ["answer_kpi"],
    "report": ["answer_report"],
    "doctor": ["answer_doctor"],
    "check": ["answer_check"],
    "retry": ["answer_order", "answer_order_run", "answer_several"],
    "skip": ["answer_order", "answer_several"],
    "rollback": ["answer_order"],
    "cancel": ["answer_order", "answer_order_run", "answer_several"],
    "unlock": ["answer_unlock"],
    "dead-letters list": ["answer_dead_letters_list"],
    "dead-letters show": ["answer_dead_letters_show"],
    "dead-letters requeue": ["answer_order", "answer_several"],
    "dead-letters drop": ["answer_dead_letters_drop", "answer_several"],
    "breaker show": ["answer_breaker_show"],
    "breaker probe": ["answer_breaker_change"],
    "breaker reset": ["answer_breaker_change"],
    "alerts list": ["answer_alerts_list"],
    "alerts show": ["answer_alerts_show"],
    "alerts ack": ["answer_alerts_change"],
    "alerts close": ["answer_alerts_change"],
    "alerts test": ["answer_alerts_test"],
    "alerts deliver": ["answer_alerts_deliver"],
    "alerts report": ["answer_alerts_report"],
    "mode show": ["answer_mode_show"],
    "mode set": ["answer_mode_change"],
    "mode auto": ["answer_mode_change"],
    "music list": ["answer_music_list"],
    "music show": ["answer_music_show"],
    "music retry": ["answer_music_change"],
    "music cancel": ["answer_music_change"],
    "music resolve": ["answer_music_change"],
    **{f"robots {name}": [f"answer_robots_{name}"] for name in ("list", "show", "check", "play")},
    "images status": ["answer_images_status"],
    "images dead list": ["answer_images_dead_list"],
    "images dead requeue": ["answer_images_dead_change", "answer_several"],
    "images dead drop": ["answer_images_dead_change", "answer_several"],
}
"""The schemas of each command's --json answer on success."""


@cache
def _validator(name: str) -> Draft202012Validator:
    registry = Registry().with_resources(
        (f"{name}.json", Resource.from_contents(schema)) for name, schema in SCHEMAS.items()
    )
    return Draft202012Validator(SCHEMAS[name], registry=registry)


def faults(name: str, document: object) -> list[str]:
    return [f"{name}: {error.json_path}: {error.message}" for error in _validator(name).iter_errors(document)]


def check(name: str, document: object) -> None:
    assert faults(name, document) == []


def check_answer(command: str, document: object) -> None:
    """Check that `document` is an answer of the command ("dead-letters list") or an error answer."""
    found = [faults(name, document) for name in [*ANSWERS.get(command, []), "answer_error"]]
    assert [] in found, f"{command}: {min(found, key=len)}"


def commands() -> dict[str, click.Command]:
    """Return every command that has --json, by its words."""
    context = click.Context(main)

    def walk(group: click.Group, words: tuple[str, ...]) -> dict[str, click.Command]:
        found: dict[str, click.Command] = {}
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            inner = walk(command, (*words, name)) if isinstance(command, click.Group) else None
            if inner is not None:
                found |= inner
            elif any("--json" in option.opts for option in command.params):
                found[" ".join((*words, name))] = command
        return found

    return walk(main, ())  # type: ignore[arg-type]


def name_of(command: click.Command) -> str:
    """Return the words that call the command; "" for a command defined by a test."""
    return next((name for name, it in commands().items() if it is command), "")


def named_in(words: Sequence[str]) -> str:
    """Return the name of the command that a command line calls."""
    line = f" {' '.join(words)} "
    return max((name for name in ANSWERS if f" {name} " in line), key=len, default="")
