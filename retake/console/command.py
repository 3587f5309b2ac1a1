"""`retake`: the root group of the operator's commands. Each is loaded only when it is called, so that help is quick."""

from importlib import import_module

import click

import retake
from retake.console.group import AS_JSON, CHANNEL, RootGroup
from retake.console.invocation import CONTEXT, with_channel

READING = {
    "status": "How each pipeline stands, and what it waits for.",
    "runs": "The runs, the last changed first.",
    "show": "Everything that happened to one run, in order.",
    "errors": "The last errors of all pipelines, the newest first.",
    "spend": "What was paid: by day, step and generation.",
    "kpi": "How well the pipelines work: success, retries, levels.",
    "report": "The incident report of one run, as Markdown.",
    "doctor": "Check everything that a generation needs.",
    "check": "Prove that everything in the bucket fits together.",
    "robots": "The robots: list, show, check, play.",
}
"""The commands that change nothing, except `spend --latest-day` and the snapshots of `kpi`."""

ACTING = {
    "retry": "Retry what failed, or a held call, now.",
    "skip": "Go on without a failing step or a held call.",
    "rollback": "Repeat a step of the generation.",
    "cancel": "End the generation under way.",
    "unlock": "Free a lease whose holder is gone.",
    "dead-letters": "What failed for good: list, show, requeue, drop.",
    "breaker": "The circuit breakers: show, probe, reset.",
    "alerts": "What is wrong: list, show, ack, close, test, deliver, report.",
    "mode": "The degraded mode: show, set, auto.",
    "music": "The music pipelines: list, show, retry, cancel, resolve, serve.",
    "images": "The image-job service: up, api, worker, status, dead.",
}
"""The commands that change something, under the lease."""

RUNNING = {
    "web": "The dashboard: all of this in a browser.",
    "init": "Write settings, prompts and a crontab into a folder.",
    "tick": "One tick of the pipeline; what a schedule runs.",
    "content": "The script of a tick that writes the texts.",
    "media": "The script of a tick that makes pictures and video.",
    "fetch": "The script of a tick that asks about a task.",
    "work": "Ticks of the channels, by messages over RabbitMQ.",
}
"""The commands that set a pipeline up and run it. If no option precedes the name of a tick or one of its scripts,
retake.__main__ runs it without the console."""


_SCRIPTS = {
    "tick": ("retake.story.options", "main"),
    "content": ("retake.story.options", "content"),
    "media": ("retake.story.options", "media"),
    "fetch": ("retake.story.options", "fetch"),
    "work": ("retake.story.work", "main"),
}
"""The module and the name of each click command that runs the pipeline."""


class Console(RootGroup):
    """Loads commands by name. A command is `command` in the module of its name, unless it is in `_SCRIPTS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*READING, *ACTING, *RUNNING]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module, name = _SCRIPTS.get(cmd_name, (f"retake.console.{cmd_name.replace('-', '_')}", "command"))
        command: click.Command = getattr(import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in _SCRIPTS and (ctx.params["as_json"] or ctx.params["channel"]):
            ctx.fail(f"the options of {args[0]} go after its name, and it has no --json")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help of the commands without loading them."""
        for title, commands in (("To look", READING), ("To act", ACTING), ("To run", RUNNING)):
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))


@click.command(cls=Console, context_settings=CONTEXT)
@click.version_option(retake.__version__, "--version", prog_name="retake", message="%(prog)s %(version)s")
@click.option("--json", "as_json", is_flag=True, help="Answer with one JSON document, whichever the command.")
@with_channel
@click.pass_context
def main(ctx: click.Context, as_json: bool, channel: str | None) -> None:
    """The operator's console: see how the pipelines stand, and act where a person is needed.

    Settings come from config/config.json (or the file that RETAKE_CONFIG names), as for the scripts. Every command
    that looks or acts has --json, for programs, and --channel. All of them are explained in docs/console.md; those that
    run the pipeline are in docs/running.md. Where pip has installed Retake, docs/ is in share/doc/retake of its
    environment.

    \b
    Exit codes:
        0   done, and (status, doctor) all is well
        2   the command line is invalid
        65  refused, because it does not fit the current state
        69  a person is needed (status, doctor)
        70  a bug
        75  the lease is held, or the bucket is unreachable: try again
        78  settings or a key are missing, wrong or refused
        130 Ctrl-C
    """
    ctx.meta[AS_JSON], ctx.meta[CHANNEL] = as_json, channel
