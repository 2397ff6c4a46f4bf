"""The command line, one file per verb.

Results go to stdout: a table for people, or with `--json` one JSON document. Everything else goes to stderr.
Exit codes: 0 fine, 1 the answer is no (an invalid program, a wrong result), 2 bad input, 3 a plan cannot
run here or a run failed, 129, 130 and 143 interrupted by SIGHUP, SIGINT and SIGTERM.
"""

import errno
import signal
import sys
import warnings
from difflib import get_close_matches
from importlib import import_module
from typing import IO, Any

import click
from click.shell_completion import CompletionItem

from meshwright.errors import EngineError, MeshwrightError, MeshwrightWarning
from meshwright.runtime.signals import ENDING, Interrupted, interrupting

VERBS = {
    "systems": "List the built-in systems.",
    "discover": "Work out a system from topology files or the ranks of a job.",
    "workload": "Show, derive or record what a training step sends.",
    "plan": "Rank placements, with the best program for each reduction.",
    "explain": "Show where the time of a plan goes, and what would help.",
    "show": "Show a plan on a page, or in time as a trace.",
    "explore": "Try out plans on a page that answers while you type.",
    "run": "Run a plan for real, check the results, and time it.",
    "launch": "Run a training script that nobody changed with a plan.",
    "export": "Write a plan for launchers, schedulers and libraries.",
    "hosts": "Write the placement of a plan for mpirun or Slurm.",
    "tune": "Measure what a plan may take, and take the fastest.",
    "bench": "Measure programs beside the library's own collective.",
    "calibrate": "Fit a system's links and a library to measurements.",
    "accuracy": "Compare the measurements of `bench` with predictions.",
    "testbed": "Emulate a hierarchical cluster on this machine.",
    "placements": "List or count the placements of axes on a system.",
    "programs": "List or count the valid programs of a hierarchy.",
    "check": "Check that a program is valid, and show what devices hold.",
    "reproduce": "Repeat the evaluation of the P2 paper.",
}
"""Every verb in the order of a user's path: from the cluster to a plan, to running it, to measuring, to looking closer;
and what it does in a sentence. Its module has the same name, and is loaded when the verb is used.
"""


class _Group(click.Group):
    """Loads verbs as they are used, and turns every error a user can meet into a message and an exit code."""

    def list_commands(self, _: click.Context) -> list[str]:
        """All verbs."""
        return list(VERBS)

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        """A verb by its name."""
        if name not in VERBS:
            return None
        verb: click.Command = getattr(import_module(f"meshwright.cli.{name}"), name)
        return verb

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb. Click proposes only verbs that are loaded, so a near miss is named here."""
        if args[0] not in VERBS:
            for close in get_close_matches(args[0], VERBS, n=1):
                ctx.fail(f"No such command {args[0]!r}. Did you mean {close!r}?")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer all verbs without loading them."""
        offered = [CompletionItem(name, help=VERBS[name]) for name in VERBS if name.startswith(incomplete)]
        return [*offered, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """Show all verbs without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line; a signal lets it clean up, and then ends it with the exit code that shells expect."""
        alone = not args and "args" not in kwargs
        if alone and signal.SIGINT in ENDING:  # a process of its own: after this, signals end it without a word
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            with interrupting():
                return super().main(*args, **kwargs)
        except Interrupted as error:
            click.echo(f"Error: {error}", err=True)
            sys.exit(128 + error.number)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb."""
        for stream in (sys.stdout, sys.stderr):
            if stream is None:
                raise _BadInput("stdout and stderr must be open")
            if hasattr(stream, "reconfigure"):  # what the terminal cannot show is escaped, not an error
                stream.reconfigure(errors="backslashreplace")
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show
                result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            raise _BadInput(f"cannot write the result: {error}") from None
        except EngineError as error:
            raise _FailedRun(str(error)) from None
        except MeshwrightError as error:
            raise _BadInput(str(error)) from None


def _show(message: Warning | str, category: type[Warning], *where: Any, **_: Any) -> None:
    """Show a warning, and one of ours without the line of code that it comes from."""
    ours = issubclass(category, MeshwrightWarning)
    text = f"Warning: {message}\n" if ours else warnings.formatwarning(message, category, *where[:2])
    click.echo(text, nl=False, err=True)


class _Told(click.ClickException):
    """An error that is one sentence or two; on a terminal it is wrapped."""

    def show(self, _file: IO[Any] | None = None) -> None:
        from meshwright.cli.output import say

        say(f"Error: {self.message}")


class _BadInput(_Told):
    exit_code = 2


class _FailedRun(_Told):
    exit_code = 3


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(package_name="meshwright")
def main() -> None:
    """Place parallelism axes on a hierarchical cluster, and find the collectives that reduce over them."""
