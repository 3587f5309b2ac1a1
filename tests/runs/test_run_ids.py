"""The id of a run: the same in every store, from its key."""

from hashlib import sha256

import pytest

from retake.runs import run


def test_an_id_is_made_from_the_digest_of_the_key() -> None:
    assert run.run_id_of("20260101-0000") == f"run-{sha256(b'20260101-0000').hexdigest()[:16]}"


def test_what_makes_digests_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []

    def search(name: str) -> object:
        searched.append(name)
        raise ImportError

    run._sha256.cache_clear()
    monkeypatch.setattr(run, "import_module", search)
    try:
        assert run.sha256_hex(b"a") == run.sha256_hex(b"a") == sha256(b"a").hexdigest()
    finally:
        run._sha256.cache_clear()
    assert len(searched) == len(set(searched))
