"""A remembered look lets a tick rest only if nothing has changed and nothing is due; any doubt leads to a full look."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retake.ticking.rest import (
    MAX_BYTES,
    SETTLED_S,
    LookFile,
    RememberedLook,
    basis,
    encoded,
    look_file,
    may_rest,
    parse,
)

BASIS, SEEN, AT, HOUR = "basis", {"config/a.json": "1-2-3", "666/": "-"}, 1_000_000.0, 3600.0

TIMES = st.floats(0, 1e10)
NAMES = st.binary(max_size=20).map(lambda it: it.replace(b"\n", b"").decode("utf-8", "surrogateescape"))
VERSIONS = st.text(st.characters(whitelist_categories=("L", "N", "P")), min_size=1, max_size=20)
LOOKS = st.builds(
    RememberedLook,
    NAMES,
    st.dictionaries(NAMES, VERSIONS, max_size=5),
    TIMES,
    st.none() | TIMES,
    st.none() | TIMES,
)


def look(
    basis: str = BASIS,
    due_at: float | None = None,
    changed_at: float | None = AT - 60,
    seen: Mapping[str, str] = SEEN,
) -> RememberedLook:
    return RememberedLook(basis, seen, AT, due_at, changed_at)


def fields(it: RememberedLook | None) -> tuple[object, ...]:
    assert it is not None
    return (it.basis, it.seen, it.looked_at, it.due_at, it.changed_at)


@pytest.mark.parametrize("now", [AT, AT + 0.001, AT + 60, AT + HOUR - 0.001])
def test_a_tick_rests_where_everything_is_as_it_was(now: float) -> None:
    assert may_rest(look(), BASIS, dict(SEEN), now, HOUR)
    assert may_rest(look(due_at=AT + HOUR), BASIS, dict(SEEN), now, HOUR)
    assert may_rest(look(changed_at=None), BASIS, dict(SEEN), now, HOUR)
    assert may_rest(look(changed_at=AT - SETTLED_S), BASIS, dict(SEEN), now, HOUR)


NAN = float("nan")


@pytest.mark.parametrize(
    ("remembered", "now"),
    [
        (None, AT + 60),
        (look(), AT - 0.001),  # the clock was set back
        (look(), AT + HOUR),
        (look(), NAN),
        (look(basis="another"), AT + 60),
        (look(due_at=AT + 60), AT + 60),
        (look(due_at=AT - 60), AT),
        (look(due_at=NAN), AT + 60),
        (look(changed_at=AT - SETTLED_S + 0.001), AT + 60),  # it may have changed again at that very moment
        (look(changed_at=AT + 5), AT + 60),
        (look(changed_at=NAN), AT + 60),
        (look(seen={**SEEN, "more": "1"}), AT + 60),
        (look(seen={**SEEN, "666/": "1-1-1"}), AT + 60),
        (RememberedLook(BASIS, {}, AT), AT + 60),
        (RememberedLook(BASIS, SEEN, NAN), AT + 60),
    ],
)
def test_every_doubt_is_a_full_look(remembered: RememberedLook | None, now: float) -> None:
    assert not may_rest(remembered, BASIS, dict(SEEN), now, HOUR)


@given(LOOKS, st.data())
def test_one_difference_of_any_kind_is_a_full_look(it: RememberedLook, data: st.DataObject) -> None:
    now = data.draw(TIMES)
    seen = dict(it.seen)
    if not may_rest(it, it.basis, seen, now, HOUR):
        now, it.due_at, it.changed_at = it.looked_at, None, None
        assert may_rest(it, it.basis, seen, now, HOUR) == bool(seen)
    if not seen:
        return
    name = data.draw(st.sampled_from(sorted(seen)))
    assert not may_rest(it, it.basis + "x", seen, now, HOUR)
    assert not may_rest(it, it.basis, {**seen, name: seen[name] + "x"}, now, HOUR)
    assert not may_rest(it, it.basis, {key: value for key, value in seen.items() if key != name}, now, HOUR)
    assert not may_rest(it, it.basis, {**seen, name + "x" * 21: "1"}, now, HOUR)
    assert not may_rest(it, it.basis, seen, it.looked_at + HOUR + 1, HOUR)  # sums of floats have no exact edge


@given(LOOKS)
def test_what_is_written_is_read_again(it: RememberedLook) -> None:
    assert fields(parse(b"".join(encoded(it)))) == fields(it)


@pytest.mark.slow
@given(LOOKS, st.data())
def test_whatever_was_cut_or_changed_is_not_a_look(it: RememberedLook, data: st.DataObject) -> None:
    whole = b"".join(encoded(it))
    at = data.draw(st.integers(0, len(whole) - 1))
    assert parse(whole[:at]) is None
    assert parse(whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]) is None
    assert parse(whole + b"\n") is None
    assert parse(data.draw(st.binary(max_size=200))) is None


@pytest.mark.parametrize(
    "it",
    [
        RememberedLook("two\nlines", SEEN, AT),
        RememberedLook(BASIS, {"two\nlines": "1"}, AT),
        RememberedLook(BASIS, {"a": "1\t2"}, AT),
        RememberedLook(BASIS, {"a": ""}, AT),
        RememberedLook(BASIS, SEEN, -1.0),
        RememberedLook(BASIS, SEEN, AT, NAN),
        RememberedLook(BASIS, SEEN, AT, None, float("inf")),
    ],
)
def test_a_look_that_could_not_be_read_again_is_not_written(it: RememberedLook, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"."):
        b"".join(encoded(it))
    assert not LookFile(str(tmp_path / "cache" / "look")).write(it)


@pytest.fixture
def file(tmp_path: Path) -> LookFile:
    found = look_file({"HOME": str(tmp_path)}, "story", "/srv/channel", "config/config.json")
    assert found
    assert found.write(look())
    return found


def test_only_its_user_can_read_the_file(file: LookFile, tmp_path: Path) -> None:
    assert fields(file.read()) == fields(look())
    path = Path(file.path)
    assert path.parent == tmp_path / ".cache" / "retake"
    assert [it.stat().st_mode & 0o777 for it in (path, path.parent)] == [0o600, 0o700]
    assert [it.name for it in path.parent.iterdir()] == [path.name]


def test_a_later_look_takes_its_place(file: LookFile) -> None:
    assert file.write(look("another"))
    assert fields(file.read()) == fields(look("another"))
    file.forget()
    assert file.read() is None
    file.forget()


def test_what_differs_at_each_start_of_a_program_decides_nothing() -> None:
    environ = {"OPENAI_API_KEY": "a", "PATH": "/bin", "INVOCATION_ID": "1", "SHLVL": "1"}
    assert basis(environ) == basis({**environ, "INVOCATION_ID": "2", "SHLVL": "2", "SSH_CLIENT": "192.0.2.1 1 22"})
    assert basis(environ) != basis({**environ, "OPENAI_API_KEY": "b"})


def test_no_two_projects_share_a_file(tmp_path: Path) -> None:
    abouts = [("a", "b"), ("ab", ""), ("", "ab"), ("a", "b", ""), ("ab",), ("a\udce4",), ("aä",)]
    files = [look_file({"HOME": str(tmp_path)}, *about) for about in abouts]
    assert len({it.path for it in files if it}) == len(abouts)


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"HOME": "/h", "XDG_CACHE_HOME": "/c"}, "/c/retake"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "relative"}, "/h/.cache/retake"),
        ({"HOME": "/h", "XDG_CACHE_HOME": ""}, "/h/.cache/retake"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/retake"),
        ({"HOME": "relative"}, None),
        ({"HOME": ""}, None),
        ({}, None),
    ],
)
def test_it_is_in_the_users_cache(environ: dict[str, str], folder: str | None) -> None:
    found = look_file(environ, "x")
    assert (os.path.dirname(found.path) if found else None) == folder


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir(mode=0o700)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def _link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda it: it.unlink(),
        lambda it: it.write_bytes(b""),
        lambda it: it.write_bytes(b"\0" * 300),
        lambda it: it.write_bytes(it.read_bytes()[:-5]),
        lambda it: it.write_bytes(it.read_bytes() + b" " * MAX_BYTES),
        lambda it: it.chmod(0o640),
        lambda it: it.chmod(0o602),
        lambda it: it.parent.chmod(0o770),
        lambda it: it.parent.chmod(0o702),
        _folder,
        _link,
        _pipe,
    ],
)
def test_a_file_that_others_may_have_made_is_not_a_look(file: LookFile, spoil: Callable[[Path], object]) -> None:
    spoil(Path(file.path))
    assert file.read() is None


@pytest.mark.parametrize("which", ["file", "folder"])
def test_another_users_is_not_a_look(file: LookFile, which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, lstat, fstat = Path(file.path), os.lstat, os.fstat

    def of_another(found: os.stat_result, spoilt: bool) -> os.stat_result:
        return os.stat_result((*found[:4], os.geteuid() + 1, *found[5:])) if spoilt else found

    monkeypatch.setattr(os, "lstat", lambda it: of_another(lstat(it), which == "folder" and Path(it) == path.parent))
    monkeypatch.setattr(os, "fstat", lambda it: of_another(fstat(it), which == "file"))
    assert file.read() is None


def test_where_it_cannot_be_written_there_is_no_look_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for home in (tmp_path / "file", tmp_path / "not" / "there", Path("/proc")):
        found = look_file({"HOME": str(home)}, "x")
        assert found
        assert not found.write(look())
        assert found.read() is None
    assert not (tmp_path / "not").exists()


def test_a_draft_that_a_dead_process_left_is_in_the_way_once(file: LookFile) -> None:
    draft = Path(f"{file.path}.{os.getpid()}")
    draft.write_text("half")
    assert not file.write(look("another"))
    assert file.write(look("another"))
    assert not draft.exists()
