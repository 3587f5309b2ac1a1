"""Checks for option values that click accepts but no command can use."""

import math
from typing import Any

import click


def not_empty(ctx: click.Context | None, param: click.Parameter | None, value: str | None) -> str | None:
    """Refuse an empty value, which an unset shell variable leaves behind: without the option the command would do
    something else. A click callback. Raises click.BadParameter."""
    if value is not None and not value.strip():
        raise click.BadParameter("it is empty.", ctx, param)
    return value


class Seconds(click.FloatRange):
    """A finite number within a range. FloatRange accepts NaN, since no comparison with it is true."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return number
