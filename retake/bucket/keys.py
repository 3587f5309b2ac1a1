"""Which strings are keys."""


def check_key(key: str) -> str:
    """Return `key` if every backend can hold it. Raises ValueError.

    Keys are relative paths with "/" between their parts. No part may be empty, "." or "..", or begin with ".retake":
    backends keep their own objects there. Backslashes, control characters and lone surrogates are not allowed. A key
    has at most 900 bytes of UTF-8, a part at most 250.

    The lengths and characters are B2's rules (`validate_b2_file_name` in b2sdk), which are the strictest: a directory
    allows 255 bytes a part.
    """
    parts = key.split("/")
    if any(part in ("", ".", "..") or part.startswith(".retake") for part in parts):
        raise ValueError(f"not a key: {key!r}")
    plain = key.isascii() and key.isprintable()  # as nearly all are: a listing of 100,000 checks each
    if "\\" in key or (not plain and any(it < " " or it == "\x7f" or "\ud800" <= it <= "\udfff" for it in key)):
        raise ValueError(f"not a key: {key!r}")
    if len(key.encode()) > 900 or any(len(part.encode()) > 250 for part in parts):
        raise ValueError(f"not a key: {key!r} (too long)")
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix` if a key can begin with it. Raises ValueError."""
    try:
        return check_key(prefix)
    except ValueError:
        return check_key(f"{prefix}x")[:-1]


def is_key(name: str) -> bool:
    """Whether `check_key` accepts `name`."""
    try:
        check_key(name)
    except ValueError:
        return False
    return True
