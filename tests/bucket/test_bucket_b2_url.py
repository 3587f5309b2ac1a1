"""The cost of operations on B2, and the parsing of URLs and keys."""

import pytest
from b2_world import ASIDE, DOCUMENT, Plain
from test_bucket_b2 import _no_orders, bucket, client, now, program, sandbox, url, watched  # noqa: F401  # fixtures

from retake.bucket import ABSENT, ANY, open_bucket
from retake.bucket.b2 import B2Bucket
from retake.bucket.b2.bucket import open_b2
from retake.bucket.b2.price import by_class
from retake.errors import SettingsError
from retake.sandbox.b2 import B2Sandbox


def test_what_each_operation_costs(sandbox: B2Sandbox, bucket: B2Bucket) -> None:
    def cost(call: object) -> tuple[int, int]:
        before = len(sandbox.calls())
        call()  # type: ignore[operator]
        classes = by_class(made.name for made in sandbox.calls()[before:])
        return classes["B"], classes["C"]

    bucket.list("")
    costs = {"lease": cost(lambda: kept.append(bucket.lease("story", "me")))} if (kept := []) == [] else {}
    costs["write"] = cost(lambda: kept.append(bucket.write(DOCUMENT, b"1", ABSENT)))
    costs["read"] = cost(lambda: bucket.read(DOCUMENT))
    costs["replace"] = cost(lambda: bucket.replace(DOCUMENT, b"2", kept[1], f"{ASIDE}0"))
    costs["list"] = cost(lambda: bucket.list("config/"))
    costs["find"] = cost(lambda: bucket.find("config/config_", ("public.json", "gen.json", "midjourney.json")))
    costs["copy"] = cost(lambda: bucket.copy(DOCUMENT, "b"))
    costs["delete"] = cost(lambda: bucket.delete("b"))
    costs["check"] = cost(kept[0].check)
    costs["release"] = cost(kept[0].release)
    assert costs == {
        "lease": (0, 2),
        "write": (0, 2),
        "read": (1, 1),
        "replace": (0, 2),
        "list": (0, 1),
        "find": (0, 1),
        "copy": (0, 4),
        "delete": (0, 1),
        "check": (0, 0),
        "release": (0, 0),
    }


def test_a_key_for_one_bucket_saves_a_call(sandbox: B2Sandbox, bucket: B2Bucket) -> None:
    before = len(sandbox.calls())
    bucket.list("")
    assert [call.name for call in sandbox.calls()[before:]] == [
        "b2_authorize_account",
        "b2_list_buckets",
        "b2_list_file_versions",
    ]


def test_more_versions_than_fit_a_page_are_all_listed(
    bucket: B2Bucket, program: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retake.bucket.b2.calls.PAGE_SIZE", 3)
    for number in range(7):
        program.put("a", b"%d" % number)
        bucket.write(f"b{number}", b"", ABSENT)
    assert [entry.key for entry in bucket.list("")] == ["a", *(f"b{number}" for number in range(7))]
    bucket.delete("a")
    assert program.versions("a") == []


@pytest.mark.parametrize("prefix", ["", "/", "/one", "/one/two/", "/%D0%B6"])
def test_the_prefix_is_a_folder_of_its_own(sandbox: B2Sandbox, prefix: str) -> None:
    url = sandbox.storage_url().replace("b2://retake", f"b2://retake{prefix}")
    bucket = client(sandbox, url)
    bucket.write("only/here", b"1", ANY)
    assert "only/here" in [entry.key for entry in bucket.list("only/")]
    bucket.delete("only/here")


@pytest.mark.parametrize(
    "url",
    [
        "b2:",
        "b2://",
        "b2:///x",
        "b2://b?region=x",
        "b2://b/x#y",
        "b2://b/../x",
        "b2://b/" + "x" * 101,
        "b2://i:k@b/x",
        "b2://[b",
    ],
)
def test_what_names_no_bucket_is_a_settings_error(url: str) -> None:
    with pytest.raises(SettingsError, match=r"STORAGE\.url"):
        open_b2(url, environ={"B2_APPLICATION_KEY_ID": "i", "B2_APPLICATION_KEY": "k"})


def test_the_door_opens_it_with_the_keys_of_the_environment(
    sandbox: B2Sandbox, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in sandbox.environment().items():
        monkeypatch.setenv(name, value)
    bucket = open_bucket(url)
    assert (type(bucket), bucket.url) == (B2Bucket, url)
    bucket.write("a", b"1", ABSENT)
    assert bucket.read("a")[0] == b"1"
    monkeypatch.delenv("B2_APPLICATION_KEY_ID")
    with pytest.raises(SettingsError, match="B2_APPLICATION_KEY_ID"):
        open_bucket(url)


def test_missing_keys_are_named_before_anything_is_asked(sandbox: B2Sandbox, url: str) -> None:
    with pytest.raises(SettingsError, match="B2_APPLICATION_KEY must"):
        open_b2(url, environ={"B2_APPLICATION_KEY_ID": "i"})
