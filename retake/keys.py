"""The vendors' API keys, which come from the environment and never from a settings file."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from retake.errors import SettingsError
from retake.foreign_text import plain


class Keys(NamedTuple):
    """The vendors' keys; None for one that is not set."""

    midjourney: str | None = None
    runway: str | None = None
    openai: str | None = None

    def __repr__(self) -> str:
        """Name the keys that are set without showing them: tracebacks include this."""
        return f"Keys({', '.join(name for name, key in self._asdict().items() if key)})"


KEYS = {
    "midjourney": (("MIDJOURNEY_API_KEY",), "for pictures (imagine and upscale)"),
    "runway": (("RUNWAYML_API_SECRET", "RUNWAY_API_KEY"), "for videos (Runway)"),
    "openai": (("OPENAI_API_KEY",), "for texts (the chat API)"),
}
"""For each field of Keys, its variables (the first that is set wins) and what the key is for."""


def read_keys(environ: Mapping[str, str]) -> Keys:
    """Return the vendors' keys. An empty variable counts as missing. Raises SettingsError for an impossible key."""
    found = {}
    for name, (variables, _) in KEYS.items():
        for variable in variables:
            value = environ.get(variable, "").strip()
            if not value.isascii() or not value.isprintable() or " " in value:
                # As an HTTP header it would raise an error that quotes it.
                raise SettingsError(f"{variable}: has characters that no key contains; copy the key again")
            if value:
                found[name] = value
                break
    return Keys(**found)


def missing_keys(keys: Keys, needed: Iterable[str]) -> SettingsError | None:
    """Return an error with a line for each missing key among `needed` (fields of Keys), or None."""
    lines = [
        f"{' or '.join(KEYS[name][0])} is not set; it is needed {KEYS[name][1]}: put it in the environment"
        for name in needed
        if getattr(keys, name) is None
    ]
    return SettingsError("\n".join(lines)) if lines else None


_SECRET_ENDINGS = (
    *("api_key", "apikey", "access_key", "accesskey", "secret_key", "secretkey", "private_key", "application_key"),
    *("key_id", "secret", "token", "password", "passwd"),
)


def secrets_in(document: dict[str, Any]) -> Iterator[str]:
    """Yield a message for each secret in `document`, the content of a settings file."""
    waiting: list[tuple[str, Any]] = [("", document)]
    while waiting:  # not recursive: a file may be nested more deeply than Python's stack allows
        path, found = waiting.pop()
        pairs = found.items() if isinstance(found, dict) else enumerate(found)
        for key, value in pairs:
            full = f"{path}.{key}" if path else str(key)
            if isinstance(value, (dict, list)):
                waiting.append((full, value))
            elif isinstance(value, str) and value.strip() and _names_a_secret(full):
                yield f"{plain(full)}: a secret in a file; take it out, make a new one, and put it in the environment"


def _names_a_secret(path: str) -> bool:
    folded = path.lower().replace("-", "_")
    return folded.endswith(_SECRET_ENDINGS) or (folded.startswith("api_keys.") and folded.endswith(".key"))
