"""The settings file: defaults, checks, misspellings, secrets; the keys; the sandbox's endpoints."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from written import as_written

from retake.errors import SettingsError
from retake.settings.schema import PictureSize, read_field
from retake.settings.shared import MidjourneySettings, StorageSettings
from retake.story.settings import SECTIONS, Settings, Workflow, load_settings, sandboxed

Load = Callable[[Any], Settings]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load a settings file with the given document, text or bytes."""
    file = tmp_path / "settings.json"

    def load_document(document: Any) -> Settings:
        if not isinstance(document, (str, bytes)):
            document = json.dumps(document)
        file.write_bytes(document if isinstance(document, bytes) else document.encode())
        return load_settings({"RETAKE_CONFIG": str(file)})

    return load_document


def faults(load: Load, document: Any) -> list[str]:
    """Return the lines of the error that `document` causes, without the line that names the file."""
    with pytest.raises(SettingsError) as caught:
        load(document)
    first, *lines = str(caught.value).split("\n")
    assert "settings.json" in first
    return lines


OLDER_FILE = {
    "API_KEYS": {
        "b2": {"endpoint": "https://s3.us-east-005.backblazeb2.com", "bucket_name": "some-bucket"},
        "midjourney": {
            "endpoint": "https://api.piapi.ai/api/v1/task",
            "task_endpoint": "https://api.piapi.ai/mj/v2/fetch",
        },
        "openai": {"model": "gpt-4o"},
        "runwayml": {"endpoint": None, "model_name": "gen4_turbo"},
    },
    "OPENAI_SETTINGS": {"model": "gpt-4o"},
    "FILE_PATHS": {
        "meta_folder": "data/meta/",
        "scripts_folder": "scripts",
        "config_public": "config/config_public.json",
        "config_gen": "config/config_gen.json",
        "config_midjourney": "config/config_midjourney.json",
        "content_output_path": "generated_content.json",
        "final_content_path": "final_content.json",
        "feedback_file": "data/feedback.json",
        "before_critique_path": "before_critique.json",
        "after_critique_path": "after_critique.json",
        "config_public_local": "config_public.json",
        "folder_444": "444/",
        "folder_555": "555/",
        "folder_666": "666/",
        "archive_folder": "archive/",
        "log_folder": "logs",
        "output_image_format": "png",
        "creative_config": "config/creative_config.json",
        "prompts_config": "config/prompts_config.json",
    },
    "CONTENT": {"topic": {"enabled": True, "max_tokens": "150"}},
    "SARCASM": {"enabled": True},
    "GENERATE": {"max_attempts": 1},
    "IMAGE_GENERATION": {"output_size": "1280×720", "midjourney_version": "7.0", "midjourney_style": None},
    "WORKFLOW": {
        "max_tasks_per_run": 1,
        "mj_timeout_seconds": 18000,
        "runway_polling_timeout": 300,
        "runway_polling_interval": 15,
        "enable_russian_translation": True,
    },
    "VIDEO": {
        "placeholder_bg_color": "cccccc",
        "placeholder_text_color": "333333",
        "mock_duration": 10,
        "mock_fps": 24,
        "mock_codec": "libx264",
        "runway_duration": 10,
        "runway_ratio": "1280:768",
    },
}


def test_a_byte_order_mark_is_not_part_of_a_file(load: Load) -> None:
    assert load(b"\xef\xbb\xbf{}") == load("{}")


def test_an_empty_file_gives_the_defaults(load: Load) -> None:
    settings = load({})
    assert settings == Settings(source=settings.source)
    assert settings.workflow.max_retries == 3
    assert settings.storage.url == "file:bucket"
    assert settings.runwayml.endpoint is None
    assert settings.image.output_size == PictureSize(1280, 720)


def test_each_section_of_the_file_reaches_its_own_attribute(load: Load) -> None:
    settings = load({})
    assert [type(part) for part in settings[: len(SECTIONS)]] == [section.make for section in SECTIONS.values()]
    assert [type(part) for part in settings] == [type(part) for part in Settings()]


def test_every_default_is_allowed_and_read_as_itself() -> None:
    for section in SECTIONS.values():
        for name, declared in section.fields.items():
            faults: list[str] = []
            assert read_field(declared, as_written(declared), name, faults) == declared.default
            assert faults == []


def test_a_value_of_the_file_takes_the_place_of_the_default(load: Load) -> None:
    settings = load({"WORKFLOW": {"max_retries": 0, "mj_timeout_seconds": 0.5}, "VIDEO": {"mock_fps": 30}})
    assert settings.workflow == Workflow(max_retries=0, mj_timeout_seconds=0.5)
    assert settings.video.mock_fps == 30


@pytest.mark.parametrize(
    "document", [{"WORKFLOW": None}, {"API_KEYS": {"openai": None}}, {"VIDEO": {"mock_fps": None}}]
)
def test_null_means_the_default(load: Load, document: Any) -> None:
    settings = load(document)
    assert settings == Settings(source=settings.source)


def test_a_byte_order_mark_is_not_a_fault(load: Load) -> None:
    assert load(b'\xef\xbb\xbf{"WORKFLOW": {"max_retries": 5}}').workflow.max_retries == 5


def test_the_file_is_config_json_in_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.json").write_text('{"WORKFLOW": {"max_retries": 7}}')
    settings = load_settings({"RETAKE_CONFIG": ""})
    assert (settings.workflow.max_retries, settings.source) == (7, "config/config.json")


def test_the_environment_overrides_the_bucket(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"STORAGE": {"url": "file:one"}}')
    environ = {"RETAKE_CONFIG": str(file)}
    assert load_settings(environ).storage == StorageSettings("file:one")
    assert load_settings({**environ, "RETAKE_STORAGE_URL": ""}).storage == StorageSettings("file:one")
    assert load_settings({**environ, "RETAKE_STORAGE_URL": "file:two"}).storage == StorageSettings("file:two")
    with pytest.raises(SettingsError, match='RETAKE_STORAGE_URL: found "two", allowed: file:PATH'):
        load_settings({**environ, "RETAKE_STORAGE_URL": "two"})


@pytest.mark.parametrize(
    ("key", "value", "read"),
    [
        ("IMAGE_GENERATION.output_size", "1280x720", PictureSize(1280, 720)),
        ("IMAGE_GENERATION.output_size", "640X480", PictureSize(640, 480)),
        ("IMAGE_GENERATION.output_size", "1920 × 1080", PictureSize(1920, 1080)),
        ("IMAGE_GENERATION.output_size", "16*4096", PictureSize(16, 4096)),
        ("IMAGE_GENERATION.output_size", [64, 32], PictureSize(64, 32)),
        ("FILE_PATHS.folder_444", "done", "done/"),
        ("FILE_PATHS.archive_folder", "data/archive/", "data/archive/"),
        ("FILE_PATHS.prompts", "my prompts/ночь.json", "my prompts/ночь.json"),
        ("STORAGE.url", "file:/var/lib/retake", "file:/var/lib/retake"),
        ("STORAGE.url", "s3://bucket/prefix?endpoint=http://127.0.0.1:9000", None),
        ("API_KEYS.openai.endpoint", "http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000/v1"),
        ("API_KEYS.runwayml.endpoint", "https://proxy.example", "https://proxy.example"),
        ("API_KEYS.midjourney.process_mode", "turbo", "turbo"),
        ("API_KEYS.midjourney.provider", "legnext", "legnext"),
        ("VIDEO.runway_ratio", "1280:768", "1280:768"),
        ("VIDEO.mock_duration", 0.5, 0.5),
        ("WORKFLOW.critical_retry_minutes", 1, 1),
        ("WORKFLOW.max_retries", 100, 100),
    ],
)
def test_an_allowed_value_is_read(load: Load, key: str, value: Any, read: Any) -> None:
    path, _, name = key.rpartition(".")
    settings = load(nested(key, value))
    attribute = settings[list(SECTIONS).index(path)]
    assert getattr(attribute, name) == (value if read is None else read)
    assert settings.warnings == ()


def nested(key: str, value: Any) -> Any:
    for name in reversed(key.split(".")):
        value = {name: value}
    return value


@pytest.mark.parametrize(
    ("key", "value", "found", "allowed"),
    [
        ("WORKFLOW.max_retries", "three", '"three"', "whole number, 0 to 100"),
        ("WORKFLOW.max_retries", True, "true", "whole number, 0 to 100"),
        ("WORKFLOW.max_retries", -1, "-1", "whole number, 0 to 100"),
        ("WORKFLOW.max_retries", 101, "101", "whole number, 0 to 100"),
        ("WORKFLOW.max_retries", 2.5, "2.5", "whole number, 0 to 100"),
        ("WORKFLOW.max_tasks_per_run", 0, "0", "whole number, 1 or more"),
        ("WORKFLOW.mj_timeout_seconds", -1, "-1", "number, 0 to 31536000"),
        ("WORKFLOW.mj_timeout_seconds", False, "false", "number, 0 to 31536000"),
        ("WORKFLOW.runway_polling_interval", float("inf"), "Infinity", "number, 0 to 31536000"),
        ("WORKFLOW.runway_polling_interval", float("nan"), "NaN", "number, 0 to 31536000"),
        ("WORKFLOW.on_exhausted", "Mock", '"Mock"', '"fail" or "mock"'),
        ("WORKFLOW.on_exhausted", ["fail"], '["fail"]', '"fail" or "mock"'),
        ("WORKFLOW", [], "[]", "an object {…}"),
        ("API_KEYS", 3, "3", "an object {…}"),
        ("API_KEYS.midjourney.process_mode", "slow", '"slow"', '"relax" or "fast" or "turbo"'),
        ("API_KEYS.midjourney.aspect_ratio", "16x9", '"16x9"', '"WIDTH:HEIGHT"'),
        ("API_KEYS.midjourney.endpoint", "api.piapi.ai", '"api.piapi.ai"', "http:// or https:// URL"),
        ("API_KEYS.midjourney.endpoint", "https://", '"https://"', "http:// or https:// URL"),
        ("API_KEYS.openai.endpoint", "https://me:pass@host/v1", '"https://…@host/v1"', "without credentials"),
        ("API_KEYS.openai.model", "", '""', "text, not empty"),
        ("API_KEYS.openai.model", {"name": "x"}, "an object", "text, not empty"),
        ("STORAGE.url", "fil:bucket", '"fil:bucket"', "file:PATH, b2://"),
        ("STORAGE.url", "file:", '"file:"', "file:PATH, b2://"),
        ("STORAGE.url", "s3://", '"s3://"', "file:PATH, b2://"),
        ("STORAGE.url", f"file:/{500 * 'a'}", '"file:/…"', "without credentials; 500 characters at most"),
        ("STORAGE.url", "b2://id:secret@bucket", '"b2://…@bucket"', "without credentials"),
        ("FILE_PATHS.config_gen", "/etc/x.json", '"/etc/x.json"', "key in the bucket"),
        ("FILE_PATHS.config_gen", "../x.json", '"../x.json"', "key in the bucket"),
        ("FILE_PATHS.folder_666", "/", '"/"', "folder in the bucket"),
        ("FILE_PATHS.folder_666", "a\\b", r'"a\\b"', "folder in the bucket"),
        ("FILE_PATHS.folder_666", ".retake/x", '".retake/x"', "folder in the bucket"),
        ("FILE_PATHS.folder_666", "ä" * 126, "found ", "parts of 250 bytes at most"),
        ("IMAGE_GENERATION.output_size", "1281x720", '"1281x720"', "even numbers, 16 to 4096"),
        ("IMAGE_GENERATION.output_size", "14x720", '"14x720"', "even numbers, 16 to 4096"),
        ("IMAGE_GENERATION.output_size", "4098x720", '"4098x720"', "even numbers, 16 to 4096"),
        ("IMAGE_GENERATION.output_size", "1280x720x3", '"1280x720x3"', "even numbers, 16 to 4096"),
        ("IMAGE_GENERATION.output_size", "big", '"big"', "even numbers, 16 to 4096"),
        ("IMAGE_GENERATION.output_size", [True, 720], "[true, 720]", "even numbers, 16 to 4096"),
        ("IMAGE_GENERATION.output_size", [[[]], 720], "a list", "even numbers, 16 to 4096"),
        ("IMAGE_GENERATION.output_size", 720, "720", "even numbers, 16 to 4096"),
        ("VIDEO.runway_ratio", "0:720", '"0:720"', '"WIDTH:HEIGHT"'),
        ("VIDEO.mock_fps", 0, "0", "whole number, 1 to 120"),
        ("VIDEO.mock_codec", "lib\nx264", r'"lib\nx264"', "text, not empty"),
        ("VIDEO.mock_codec", "\ud800", "\\ud800", "text, not empty"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(
    load: Load, key: str, value: Any, found: str, allowed: str
) -> None:
    (line,) = faults(load, nested(key, value))
    assert line.startswith(f"{key}: found ")
    assert found in line.partition(", allowed: ")[0]
    assert allowed in line.partition(", allowed: ")[2]
    assert line.isprintable()


def test_all_faults_are_in_one_error_one_a_line(load: Load) -> None:
    lines = faults(load, {"WORKFLOW": {"max_retries": "x", "max_retires": 3}, "VIDEO": {"mock_fps": -1}, "API_KEYS": 1})
    assert [line.partition(":")[0] for line in lines] == [
        "API_KEYS",
        "WORKFLOW.max_retries",
        "VIDEO.mock_fps",
        "WORKFLOW.max_retires",
    ]


def test_a_script_must_outlast_the_polling(load: Load) -> None:
    (line,) = faults(load, {"WORKFLOW": {"runway_polling_timeout": 900}})
    assert line.startswith("WORKFLOW.script_timeout_seconds: found 900, allowed: more than ")
    assert load({"WORKFLOW": {"runway_polling_timeout": 900, "script_timeout_seconds": 900.5}})


@pytest.mark.parametrize(
    ("provider", "endpoint"),
    [
        ("legnext", "https://api.piapi.ai/api/v1/task"),
        ("piapi", "https://api.legnext.ai/api"),
        (None, "https://legnext.ai"),
    ],
)
def test_one_sellers_address_is_not_asked_in_the_others_words(load: Load, provider: str | None, endpoint: str) -> None:
    midjourney = {"provider": provider, "endpoint": endpoint}
    [fault] = faults(load, {"API_KEYS": {"midjourney": midjourney}})
    assert fault == (
        f'API_KEYS.midjourney.endpoint: found "{endpoint}", allowed: null or an address of '
        f"API_KEYS.midjourney.provider ({provider or 'piapi'})"
    )


@pytest.mark.parametrize(
    ("paths", "blamed"),
    [
        ({"folder_555": "444"}, "folder_555"),
        ({"archive_folder": "666/old"}, "archive_folder"),
        ({"config_gen": "config/config_public.json"}, "config_public"),
        ({"config_gen": "666/gen.json"}, "config_gen"),
    ],
)
def test_no_two_places_in_the_bucket_may_overlap(load: Load, paths: Any, blamed: str) -> None:
    (line,) = faults(load, {"FILE_PATHS": paths})
    assert line.startswith(f"FILE_PATHS.{blamed}: ")


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("WORKFLOW.max_retires", "max_retries"),
        ("WORKFLOW.maxRetries", "max_retries"),
        ("WORKFLOW.max-retries", "max_retries"),
        ("WORKFLOW.max_retry", "max_retries"),
        ("WORKFLOW.retries", "max_retries"),
        ("WORKFLOW.mj_timeout", "mj_timeout_seconds"),
        ("WORKFLOW.script_timeout", "script_timeout_seconds"),
        ("WORKFLOW.on_exausted", "on_exhausted"),
        ("IMAGE_GENERATION.ouput_size", "output_size"),
        ("FILE_PATHS.folder_44", "folder_444"),
        ("FILE_PATHS.arhive_folder", "archive_folder"),
        ("API_KEYS.runwayml.model", "model_name"),
        ("API_KEYS.RUNWAYML", "runwayml"),
        ("API_KEYS.midjorney", "midjourney"),
        ("WORKFLWO", "WORKFLOW"),
        ("workflow", "WORKFLOW"),
        ("IMAGE_GENERATIONS", "IMAGE_GENERATION"),
        ("API_KEY", "API_KEYS"),
    ],
)
def test_a_misspelt_name_is_an_error_that_says_what_was_meant(load: Load, key: str, meant: str) -> None:
    assert faults(load, nested(key, {})) == [f"{key}: unknown setting, did you mean {meant}?"]


def test_an_older_file_works_with_one_warning(load: Load) -> None:
    settings = load(OLDER_FILE)
    assert settings.image.output_size == PictureSize(1280, 720)
    assert settings.video.runway_ratio == "1280:768"
    (warning,) = settings.warnings
    assert warning.startswith(settings.source)
    for name in ("CONTENT", "OPENAI_SETTINGS", "API_KEYS.b2", "FILE_PATHS.config_public_local", "VIDEO.placeholder_bg"):
        assert name in warning
    assert "max_tasks_per_run" not in warning


@pytest.mark.parametrize("key", ["OTHER", "LOGGING", "METRICS", "WORKFLOW.colour", "API_KEYS.midjourney.account"])
def test_other_unknown_names_are_left_alone_and_warned_of(load: Load, key: str) -> None:
    assert key in load(nested(key, 1)).warnings[0]


def test_a_warning_of_many_names_stays_readable(load: Load) -> None:
    (warning,) = load({f"ZZ_{number}": 1 for number in range(1000)} | {"evil\nname" + "x" * 5000: 1}).warnings
    assert warning.isprintable()
    assert len(warning) < 1500
    assert warning.endswith("and 971 more")


@pytest.mark.parametrize(
    "key",
    [
        "API_KEYS.openai.api_key",
        "API_KEYS.midjourney.key",
        "API_KEYS.b2.secret_key",
        "API_KEYS.b2.application-Key-Id",
        "TELEGRAM.bot-token",
        "OTHER.deep.er.Password",
        "OPENAI_API_KEY",
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_repeated(load: Load, key: str) -> None:
    lines = faults(load, nested(key, "hush-hush-0123456789"))
    assert lines[0].startswith(f"{key}: a secret in a file;")
    assert "hush-hush" not in "\n".join(lines)


def test_a_secret_in_a_list_is_found_too(load: Load) -> None:
    assert faults(load, {"BOTS": [{"token": "x"}]})[0].startswith("BOTS.0.token: a secret in a file;")


@pytest.mark.parametrize("value", [None, "", "  ", 150, True])
def test_a_secrets_name_without_a_value_is_not_a_secret(load: Load, value: Any) -> None:
    assert load({"CONTENT": {"api_key": value}})


def test_a_secret_in_the_wrong_place_is_not_repeated(load: Load) -> None:
    key = "sk-proj-abcdefghij0123456789"
    text = "\n".join(faults(load, {"API_KEYS": {"openai": key, "midjourney": {"endpoint": key}}}))
    assert "abcdefghij" not in text


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"WORKFLOW": {\n  "max_retries" 3\n}}', "not JSON at line 2, column 17"),
        ("", "not JSON at line 1, column 1"),
        ("[]", "must be a JSON object"),
        ("null", "must be a JSON object"),
        (b'{"a": "\xff"}', "byte 8 is not UTF-8"),
        ('{"VIDEO": {}, "VIDEO": {}}', '"VIDEO" appears twice'),
        ('{"a": ' + "9" * 5000 + "}", "the settings file is invalid"),
        ("[" * 100_000, "the settings file is invalid"),
    ],
)
def test_what_is_not_a_settings_file_is_reported_with_its_name(load: Load, content: str | bytes, told: str) -> None:
    with pytest.raises(SettingsError, match=r"settings\.json") as caught:
        load(content)
    assert told in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere.json"
    with pytest.raises(SettingsError, match=r"nowhere\.json: there is no such settings file; .* RETAKE_CONFIG"):
        load_settings({"RETAKE_CONFIG": str(missing)})
    with pytest.raises(SettingsError, match="cannot be read: Is a directory"):
        load_settings({"RETAKE_CONFIG": str(tmp_path)})
    with pytest.raises(SettingsError, match="the settings file is invalid"):
        load_settings({"RETAKE_CONFIG": "a\0b"})


def settings_or_error(load: Load, document: Any) -> Settings | SettingsError:
    try:
        return load(document)
    except SettingsError as error:
        return error


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["1x2", "a:b", "/"])
)
names = st.sampled_from([name for path, section in SECTIONS.items() for name in [*path.split("."), *section.fields]])
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names | st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)
settings_like = st.fixed_dictionaries(
    {},
    optional={
        path: st.fixed_dictionaries({}, optional=dict.fromkeys(section.fields, documents))
        for path, section in SECTIONS.items()
        if "." not in path
    },
)


@pytest.mark.slow
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(documents | settings_like)
def test_any_json_gives_settings_or_a_settings_error(load: Load, document: Any) -> None:
    outcome = settings_or_error(load, document)
    told = str(outcome).split("\n") if isinstance(outcome, SettingsError) else outcome.warnings
    assert all(line.isprintable() for line in told)


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(st.binary(max_size=60))
def test_any_bytes_give_settings_or_a_settings_error(load: Load, content: bytes) -> None:
    assert str(settings_or_error(load, content))


def test_the_sandbox_takes_the_place_of_every_vendor() -> None:
    settings = sandboxed(Settings(workflow=Workflow(max_retries=9)), "http://127.0.0.1:8123/")
    assert settings.midjourney.endpoint == "http://127.0.0.1:8123/piapi/api/v1/task"
    assert settings.midjourney.task_endpoint == "http://127.0.0.1:8123/piapi/mj/v2/fetch"
    assert settings.runwayml.endpoint == "http://127.0.0.1:8123/runway"
    assert settings.openai.endpoint == "http://127.0.0.1:8123/openai/v1"
    assert settings.workflow == Workflow(max_retries=9, runway_polling_interval=1)


def test_the_sandbox_takes_the_place_of_the_chosen_seller_of_pictures() -> None:
    settings = sandboxed(
        Settings(midjourney=MidjourneySettings(provider="legnext", task_endpoint="https://x")), "http://h:1"
    )
    assert settings.midjourney == MidjourneySettings(provider="legnext", endpoint="http://h:1/legnext/api")


def test_loading_a_sound_file_imports_nothing_heavy(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(OLDER_FILE))
    code = (
        "import sys; from retake.story.settings import load_settings; from retake.keys import read_keys; "
        "load_settings({'RETAKE_CONFIG': sys.argv[1]}); read_keys({}); "
        "print(*{'difflib', 'dataclasses', 'pathlib', 'logging', 'hashlib', 'subprocess'} & set(sys.modules))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(file)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
        env={"PATH": os.environ.get("PATH", "")},
    )
    assert ran.stdout.strip() == ""
