"""`retake init`: create a folder to run from, with settings, prompts, policies, workflows, a crontab and
.env.example."""

import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import click

from retake.alerts.settings import VARIABLES
from retake.console.answer import Answer, Heading, Raw, Sentence, Tone
from retake.console.group import AS_JSON, CHANNEL
from retake.console.invocation import CONTEXT, execute
from retake.data import checkout, default_file, packaged_file
from retake.errors import SettingsError
from retake.images.settings import ENVIRONMENT as OF_IMAGES
from retake.keys import KEYS
from retake.music.settings import MUSIC_KEYS
from retake.operations.port import Refusal
from retake.settings.reader import ENVIRONMENT
from retake.web.settings import ENVIRONMENT as OF_WEB

STORES = {
    ("B2_APPLICATION_KEY_ID", "B2_APPLICATION_KEY"): "a bucket on Backblaze B2 (STORAGE.url b2://…)",
    ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"): "a bucket on S3 (STORAGE.url s3://…)",
    ("PGPASSWORD",): "a ledger in PostgreSQL (STORAGE.ledger postgresql://…)",
}
"""The environment variables that stores read, and their purpose."""

_LISTED = 3  # files listed in a refusal


@click.command("init", context_settings=CONTEXT)
@click.argument("folder", default=".", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Answer with one JSON document.")
@click.pass_context
def command(context: click.Context, folder: Path, as_json: bool) -> None:
    """Write settings, prompts, policies, workflows, a crontab and .env.example into FOLDER (default: the current one).

    Nothing is overwritten: if one of the files is there already, nothing is written at all.
    """
    if context.meta.get(CHANNEL):
        context.fail("init takes no --channel")
    program = context.find_root().command_path
    sys.exit(execute(lambda: _init(folder, program), as_json=as_json or bool(context.meta.get(AS_JSON))))


def _init(folder: Path, program: str) -> Answer:
    try:
        folder = Path(os.path.abspath(folder))
    except FileNotFoundError:
        raise SettingsError("the current folder no longer exists: change to one that does") from None
    if "\n" in str(folder):
        raise Refusal(f"{str(folder)!r} has a line break in its name, and a cron job is one line. Name another folder")
    try:
        files = _files(folder)
        _check_free(folder, files)
        _write(folder, files)
    except OSError as error:
        where = error.filename or folder
        raise SettingsError(f"{where}: {error.strerror}; nothing was written. Name another folder") from None
    document = {"done": "init", "folder": str(folder), "written": sorted(files)}
    done = Sentence(
        f"Done: {folder} has settings, prompts, policies, workflows, crontab.example and .env.example.", Tone.GOOD
    )
    return Answer(document, [done, Heading("Next"), Raw(_next_steps(folder, program))])


def _files(folder: Path) -> Mapping[str, bytes]:
    """Return the content of the files to write, by their paths in `folder`."""
    source = Path(default_file("config"))
    folders = [*source.glob("policies/*.toml"), *source.glob("workflows/*.json")]
    names = ["config.json", "prompts.json", *(path.relative_to(source).as_posix() for path in folders)]
    files = {f"config/{name}": (source / name).read_bytes() for name in names}
    return files | {"crontab.example": _crontab(folder), ".env.example": _variables().encode()}


def _check_free(folder: Path, files: Mapping[str, bytes]) -> None:
    taken = [name for name in sorted(files) if os.path.lexists(folder / name)]
    if taken:
        named = ", ".join(taken[:_LISTED]) + (f" and {len(taken) - _LISTED} more" if len(taken) > _LISTED else "")
        raise Refusal(
            f"{folder} already has {named}, and nothing is overwritten: nothing was written. "
            "Move them away, or name another folder"
        )


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write all of the files or none: if one fails, those written before it are removed."""
    written: list[Path] = []
    try:
        for name, data in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                written.append(path)
                file.write(data)
    except OSError:
        for path in written:
            with suppress(OSError):
                path.unlink()
        raise


def _crontab(folder: Path) -> bytes:
    """Return the text of crontab.example. It contains the folder's name in the system's bytes, UTF-8 or not."""
    places = {"FOLDER": shlex.quote(str(folder)), "TICK": shlex.join(_tick_command())}
    *comments, job = Path(packaged_file("crontab.template")).read_text("utf-8").splitlines(keepends=True)
    for name, place in places.items():
        job = job.replace(name, place.replace("%", "\\%"))  # cron ends a command at a bare %
    return "".join(comments).encode() + os.fsencode(job)


def _tick_command() -> list[str]:
    """Return the command of one tick: a script of the checkout, the installed command, or this Python's module."""
    if folder := checkout():
        return [sys.executable, os.path.join(folder, "b2_storage_manager.py")]
    installed = os.path.join(os.path.dirname(sys.executable), "retake")
    return [installed, "tick"] if os.path.exists(installed) else [sys.executable, "-m", "retake", "tick"]


def _variables() -> str:
    """Return the text of .env.example: every variable, with the optional ones commented out."""
    lines = [
        "# Copy this file to .env, fill it in, and `chmod 600 .env`: NAME=value, without spaces.",
        "# A shell reads this file: put a value with & or another special character in single quotes.",
    ]
    for (first, *others), purpose in KEYS.values():
        lines += ["", f"# {purpose}", f"{first}="]
        lines += [line for name in others for line in (f"# read instead if {first} is empty:", f"#{name}=")]
    single = [*ENVIRONMENT.items(), *VARIABLES.items(), *_of_music(), *OF_WEB.items(), *_of_images()]
    for names, purpose in [*STORES.items(), *(((name,), purpose) for name, purpose in single)]:
        lines += ["", f"# {purpose}", *(f"#{name}=" for name in names)]
    return "\n".join([*lines, ""])


def _of_music() -> list[tuple[str, str]]:
    """Return the variables that only the music service needs."""
    known = {name for names, _ in KEYS.values() for name in names} | {*VARIABLES}
    return [(name, f"{purpose}: the music service") for name, purpose in MUSIC_KEYS.values() if name not in known]


def _of_images() -> list[tuple[str, str]]:
    """Return the variables that only the image-job service needs."""
    return [(name, f"the image-job service: {it}") for name, it in OF_IMAGES.items() if name not in ENVIRONMENT]


def _next_steps(folder: Path, program: str) -> str:
    steps = [] if folder == Path.cwd() else [(f"cd {shlex.quote(str(folder))}", "")]
    steps += [
        (f"RETAKE_STORAGE_URL=file:demo {program} tick --sandbox --until-done", "a generation without an account"),
        ("cp .env.example .env && chmod 600 .env", "then write the keys into .env"),
        (f"(set -a; . ./.env; {program} doctor)", "is everything in place? It asks each vendor, at no cost"),
        (f"(set -a; . ./.env; {program} tick --dry-run)", "what would a tick do?"),
        ("crontab -e", "paste crontab.example"),
    ]
    told = "\n".join(f"  {step}{f'  # {why}' if why else ''}" for step, why in steps)
    return (
        f"{told}\n\nWhat the channel is about is in config/prompts.json (docs/prompts.md); settings are in "
        "config/config.json (docs/settings.md)."
    )
