"""The vendors' keys: read from the environment alone, and never shown."""

import pytest

from retake.errors import SettingsError
from retake.keys import Keys, missing_keys, read_keys


def test_keys_come_from_the_environment_stripped() -> None:
    environ = {"MIDJOURNEY_API_KEY": " mj-1\n", "RUNWAY_API_KEY": "key_old", "OPENAI_API_KEY": "  "}
    assert read_keys(environ) == Keys(midjourney="mj-1", runway="key_old", openai=None)
    assert read_keys({**environ, "RUNWAYML_API_SECRET": "key_new"}).runway == "key_new"
    assert read_keys({**environ, "RUNWAYML_API_SECRET": ""}).runway == "key_old"


@pytest.mark.parametrize("value", ["two words", "a\nb", "ключ", "a\0b", "\udcff"])
def test_what_cannot_be_a_key_is_refused_without_being_repeated(value: str) -> None:
    with pytest.raises(SettingsError, match="OPENAI_API_KEY") as caught:
        read_keys({"OPENAI_API_KEY": value})
    assert value not in str(caught.value)


def test_keys_do_not_show_themselves() -> None:
    assert repr(Keys(midjourney="hush", openai="hush-hush")) == "Keys(midjourney, openai)"
    assert "hush" not in f"{Keys(runway='hush')} {Keys(runway='hush')!s}"


def test_each_missing_key_is_named_with_what_it_is_for() -> None:
    error = missing_keys(Keys(openai="x"), ("midjourney", "runway", "openai"))
    assert isinstance(error, SettingsError)
    first, second = str(error).split("\n")
    assert first.startswith("MIDJOURNEY_API_KEY is not set; it is needed for pictures")
    assert second.startswith("RUNWAYML_API_SECRET or RUNWAY_API_KEY is not set; it is needed for videos")


def test_keys_that_are_not_needed_may_be_missing() -> None:
    assert missing_keys(Keys(openai="x"), ("openai",)) is None
    assert missing_keys(Keys(), ()) is None
