"""Values of options that click lets pass and no command can use."""

import math
from typing import Any

import click


def not_empty(ctx: click.Context | None, param: click.Parameter | None, value: str | None) -> str | None:
    """Refuse an empty value, as an unset variable of a shell leaves it: without the option a command does something
    else. A callback of click. Raises click.BadParameter."""
    if value is not None and not value.strip():
        raise click.BadParameter("it is empty.", ctx, param)
    return value


class Seconds(click.FloatRange):
    """A number within a range, and finite: no comparison holds for NaN, so that no range refuses it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return number
