"""PIPELINES, the pipelines of your own that the console and the dashboard show: form and names."""

import json
from pathlib import Path
from typing import Any

import pytest
from settings_files import load

from retake.errors import SettingsError
from retake.images.settings import load_images_settings
from retake.music.settings import load_music_settings
from retake.story.settings import load_settings
from retake.web.settings import load_web_settings


def test_pipelines_are_named_and_say_where_python_finds_them(tmp_path: Path) -> None:
    assert load(tmp_path, {}).pipelines == {}
    named = {"song": "song:OperatedSong", "poems-2": "our.poems:Poems.operated"}
    assert load(tmp_path, {"PIPELINES": named, "CHANNELS": ["north"]}).pipelines == named


@pytest.mark.parametrize("value", ["song", "song:", ":Song", "a b:c", "a..b:c", "a:b:c", "a:b()", 1, None, ["a:b"]])
def test_what_python_cannot_find_is_an_error_that_names_the_pipeline(tmp_path: Path, value: Any) -> None:
    with pytest.raises(SettingsError, match=r'PIPELINES\.song: .*allowed: "MODULE:ATTRIBUTE", as Python imports it'):
        load(tmp_path, {"PIPELINES": {"song": value}})


@pytest.mark.parametrize("value", ["song:Song", ["song:Song"], 1])
def test_what_is_no_object_of_pipelines_is_an_error(tmp_path: Path, value: Any) -> None:
    with pytest.raises(
        SettingsError, match=r"PIPELINES: found .*, allowed: an object \{…\} of values, by name, each: "
    ):
        load(tmp_path, {"PIPELINES": value})


@pytest.mark.parametrize("name", ["", "a/b", "..", ".a", "a b", "é", "x" * 65])
def test_a_name_that_no_folder_can_have_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match=r"PIPELINES\..*: not a name, allowed: name of letters"):
        load(tmp_path, {"PIPELINES": {name: "song:Song"}})


@pytest.mark.parametrize(
    "name", ["story", "music", "images", "Story", "caps", "runs", "spend", "archive", "config", "666"]
)
def test_no_pipeline_is_called_like_one_of_retakes_own_or_like_a_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match=rf'PIPELINES\.{name}: "{name}" is a pipeline or a folder of Retake\'s own'):
        load(tmp_path, {"PIPELINES": {name: "song:Song"}})


def test_no_pipeline_is_called_like_a_channel(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r'PIPELINES\.Song: "song" is one of the CHANNELS too'):
        load(tmp_path, {"PIPELINES": {"Song": "song:Song"}, "CHANNELS": ["north", "song"]})


def test_the_other_programs_that_read_the_file_know_the_setting(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"PIPELINES": {"song": "song:Song"}}))
    environ = {"RETAKE_CONFIG": str(file), "IMAGES_STORAGE_URL": "file:images"}
    assert load_settings(environ).warnings == ()
    assert load_music_settings(environ).warnings == ()
    assert load_images_settings(environ).warnings == ()
    load_web_settings(environ)
