"""CHANNELS, the only setting that is a list rather than a section."""

from pathlib import Path
from typing import Any

import pytest
from settings_files import load

from retake.errors import SettingsError


def test_channels_are_a_list_of_names(tmp_path: Path) -> None:
    assert load(tmp_path, {}).channels == ()
    assert load(tmp_path, {"CHANNELS": ["north", "south-2"]}).channels == ("north", "south-2")


@pytest.mark.parametrize("value", ["north", ["a", "a"], ["a/b"], [""], [".."], [1], {"a": 1}])
def test_what_is_not_a_list_of_channels_is_an_error(tmp_path: Path, value: Any) -> None:
    with pytest.raises(SettingsError, match=r"CHANNELS: found .*, allowed: list"):
        load(tmp_path, {"CHANNELS": value})


@pytest.mark.parametrize("name", ["caps", "breakers", "Caps", "alerts", "kpi", "mode", "KPI"])
def test_no_channel_is_called_like_a_folder_that_all_of_them_share(tmp_path: Path, name: str) -> None:
    others = '"alerts", "breakers", "caps", "kpi", "mode" and "music"'
    with pytest.raises(SettingsError, match=rf"CHANNELS: found .*, allowed: list .* other than {others}"):
        load(tmp_path, {"CHANNELS": ["north", name]})
