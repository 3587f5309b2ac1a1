"""docs/settings.md matches the code, and contains nothing else."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from written import as_written

from retake.errors import SettingsError
from retake.images.settings import ENVIRONMENT as IMAGES_ENVIRONMENT
from retake.images.settings import SECTIONS as IMAGES_SECTIONS
from retake.images.settings import load_images_settings
from retake.keys import KEYS
from retake.music.settings import MUSIC_KEYS, load_music_settings
from retake.music.settings import SECTIONS as MUSIC_SECTIONS
from retake.settings.reader import ENVIRONMENT
from retake.settings.schema import Field, PictureSize
from retake.settings.shared import TOP_LEVEL
from retake.story.settings import SECTIONS, load_settings
from retake.web.settings import ENVIRONMENT as WEB_ENVIRONMENT
from retake.web.settings import SECTIONS as WEB_SECTIONS
from retake.web.settings import load_web_settings

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
ROWS = {
    cells[0].strip().strip("`"): tuple(cell.strip() for cell in cells[1:])
    for cells in (line.strip("|").split(" | ") for line in PAGE.splitlines() if line.startswith("| `"))
}
DECLARED = {
    f"{path}.{name}": declared
    for path, section in (SECTIONS | MUSIC_SECTIONS | IMAGES_SECTIONS | WEB_SECTIONS).items()
    for name, declared in section.fields.items()
}


def written(declared: Field) -> str:
    default = declared.default
    return json.dumps(str(default) if isinstance(default, PictureSize) else as_written(declared))


def test_the_page_has_every_setting_and_no_other() -> None:
    told = {key for key in ROWS if "." in key}
    for key, it in DECLARED.items():
        row = f"| `{key}` | `{written(it)}` | {it.rule.allowed} | {it.meaning}. |"
        assert key in told, f"docs/settings.md: add {row}, with what an operator needs to know"
    assert told <= DECLARED.keys()


@pytest.mark.parametrize(("key", "declared"), DECLARED.items(), ids=list(DECLARED))
def test_a_row_gives_the_default_the_range_and_the_meaning(key: str, declared: Field) -> None:
    default, allowed, meaning = ROWS.get(key, ("", "", "no row"))
    assert default == f"`{written(declared)}`"
    assert allowed == declared.rule.allowed
    assert meaning.startswith(f"{declared.meaning}.")


@pytest.mark.parametrize(("name", "written_default"), [("CHANNELS", "`[]`"), ("PIPELINES", "`{}`")])
def test_the_settings_beside_the_sections_have_their_rows_too(name: str, written_default: str) -> None:
    default, allowed, _ = ROWS[name]
    assert (default, allowed) == (written_default, TOP_LEVEL[name].rule.allowed)


def test_settings_stand_under_the_heading_of_their_section() -> None:
    for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        heading = part.partition("\n")[0]
        keys = [
            line.split("`")[1] for line in part.splitlines() if line.startswith("| `") and "." in line.split("`")[1]
        ]
        assert {key.rpartition(".")[0] for key in keys} <= {heading}


def test_the_page_has_every_variable_and_no_other() -> None:
    keys = {"` or `".join(variables): f"{purpose}." for variables, purpose in KEYS.values()}
    keys |= {name: f"{purpose}." for name, purpose in MUSIC_KEYS.values() if name not in keys}
    others = ("NO_COLOR", *TOP_LEVEL)
    told = {name: cells[0] for name, cells in ROWS.items() if "." not in name and name not in others}
    every = ENVIRONMENT | IMAGES_ENVIRONMENT | WEB_ENVIRONMENT | keys
    for name, meaning in every.items():
        assert told.get(name, "").startswith(meaning.removesuffix(".")), f"docs/settings.md: | `{name}` | {meaning} |"
    assert told.keys() == every.keys()


def test_the_shipped_file_loads_without_a_warning_and_changes_no_default() -> None:
    source = str(ROOT / "config" / "config.json")
    settings = load_settings({"RETAKE_CONFIG": source})
    assert settings == type(settings)(source=source)


def test_the_shipped_file_says_nothing_of_music() -> None:
    source = str(ROOT / "config" / "config.json")
    settings = load_music_settings({"RETAKE_CONFIG": source})
    assert settings == type(settings)(source=source)


def test_the_shipped_file_says_nothing_of_image_jobs() -> None:
    source = str(ROOT / "config" / "config.json")
    settings = load_images_settings({"RETAKE_CONFIG": source})
    assert settings.images == type(settings.images)()
    assert settings.warnings == ()


def test_the_shipped_file_says_nothing_of_the_dashboard() -> None:
    settings = load_web_settings({"RETAKE_CONFIG": str(ROOT / "config" / "config.json")})
    assert settings == type(settings)()


def test_the_shipped_file_names_no_setting_twice_and_none_that_is_unknown() -> None:
    def keys(found: dict[str, object], path: str = "") -> set[str]:
        return {
            key
            for name, value in found.items()
            for key in (keys(value, f"{path}{name}.") if isinstance(value, dict) else {f"{path}{name}"})
        }

    assert keys(json.loads((ROOT / "config" / "config.json").read_text(encoding="utf-8"))) <= set(DECLARED)


@pytest.mark.parametrize(
    ("section", "read"),
    [("WEB", load_web_settings), ("IMAGES", load_images_settings), ("MUSIC", load_music_settings)],
)
def test_a_command_looks_at_the_sections_that_it_reads(
    section: str, read: Callable[[dict[str, str]], object], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({section: 7}))
    environ = {"RETAKE_CONFIG": str(tmp_path / "config.json")}
    assert load_settings(environ).warnings == ()
    with pytest.raises(SettingsError, match=f"{section}: found 7"):
        read(environ)
