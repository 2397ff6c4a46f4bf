"""The command line, one file per verb.

Results go to stdout: a table for people, or with `--json` one JSON document. Everything else goes to stderr.
Exit codes: 0 fine, 1 the answer is no (an invalid program, a wrong result), 2 bad input, 3 a plan cannot
run here or a run failed, 129, 130 and 143 interrupted by SIGHUP, SIGINT and SIGTERM.
"""

import errno
import signal
import sys
import warnings
from typing import Any, TextIO

import click

from meshwright.cli.accuracy import accuracy
from meshwright.cli.bench import bench
from meshwright.cli.calibrate import calibrate
from meshwright.cli.check import check
from meshwright.cli.explain import explain
from meshwright.cli.hosts import hosts
from meshwright.cli.placements import placements
from meshwright.cli.plan import plan
from meshwright.cli.programs import programs
from meshwright.cli.reproduce import reproduce
from meshwright.cli.run import run
from meshwright.cli.systems import systems
from meshwright.cli.testbed import testbed
from meshwright.cli.workload import workload
from meshwright.errors import EngineError, MeshwrightError, MeshwrightWarning
from meshwright.runtime.signals import Interrupted, interrupting


class _Group(click.Group):
    """A group that turns every error a user can meet into a message and an exit code."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line; a signal lets it clean up, and then ends it with the exit code that shells expect."""
        if not args and "args" not in kwargs:  # a process of its own: after this, signals end it without a word
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


def _show(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,
) -> None:
    """Show a warning, and one of ours without the line of code that it comes from."""
    ours = issubclass(category, MeshwrightWarning)
    text = f"Warning: {message}\n" if ours else warnings.formatwarning(message, category, filename, lineno, line)
    click.echo(text, nl=False, err=True)


class _BadInput(click.ClickException):
    exit_code = 2


class _FailedRun(click.ClickException):
    exit_code = 3


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="meshwright")
def main() -> None:
    """Place parallelism axes on a hierarchical cluster, and find the collectives that reduce over them."""


for verb in (
    plan,
    explain,
    placements,
    programs,
    check,
    systems,
    workload,
    reproduce,
    run,
    hosts,
    testbed,
    bench,
    calibrate,
    accuracy,
):
    main.add_command(verb)
