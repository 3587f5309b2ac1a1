"""Settings as a file would contain them."""

from typing import Any

from retake.settings.schema import Field, NamedTables, OneTable, Schema


def as_written(declared: Field) -> Any:
    """Return the default as a settings file would contain it."""
    if isinstance(declared.rule, OneTable):
        assert isinstance(declared.rule.schema, Schema)
        return {name: it.default for name, it in declared.rule.schema.fields.items()}
    if isinstance(declared.rule, NamedTables):
        return {}
    return list(declared.default) if isinstance(declared.default, tuple) else declared.default
