"""`meshwright explore`: the page where a plan is tried out while typing."""

import signal
import socket
import webbrowser

import click

from meshwright.cli import options
from meshwright.cli.output import say
from meshwright.errors import SpecError
from meshwright.runtime.signals import Interrupted


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=8642, help="The port on 127.0.0.1; 0 takes a free one.")
@options.time("--limit", "10s", "How long an answer may take.")
@click.option("--open/--no-open", "opens", default=True, help="Whether to open the page in a browser.")
def explore(port: int, limit: float, opens: bool) -> None:
    """Try out systems, axes and workloads on a page of this machine, where the answer comes while typing.

    It needs the extra `explore`. The server answers to this machine alone. Ctrl-C ends it.
    """
    try:
        import uvicorn

        from meshwright.show.server import application
    except ImportError as error:
        raise SpecError(f"explore needs Starlette and uvicorn, pip install '.[explore]': {error}") from None
    try:
        listening = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise SpecError(f"cannot listen at port {port} of 127.0.0.1: {error.strerror}; try another --port") from None
    with listening:
        port = listening.getsockname()[1]
        address = f"http://127.0.0.1:{port}/"
        say(f"the page is at {address} (Ctrl-C ends it)")
        if opens:
            webbrowser.open(address)
        config = uvicorn.Config(
            application(port, limit), log_level="warning", server_header=False, limit_concurrency=64, lifespan="on"
        )
        try:
            uvicorn.Server(config).run(sockets=[listening])
        except Interrupted as ended:  # uvicorn has closed everything, and raised the signal again
            if ended.number != signal.SIGINT:
                raise
