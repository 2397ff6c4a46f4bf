"""The server of `meshwright explore`: the page, what it offers, and answers; for this machine alone.

It answers only under its own names, so that no other site can reach it by giving itself its address; it takes questions
only from its own page; and it serves a fixed list of things, so that no path leads to a file.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from meshwright.errors import EngineError
from meshwright.show.asked import choices
from meshwright.show.report import asset
from meshwright.show.worker import Workers

MOST_BYTES = 2**16
"""The most bytes of a question."""

MOST_WAITING = 8
"""How many questions may wait for their turn."""

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Meshwright</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="app.css">
</head>
<body>
<div id="root"></div>
<noscript>This page draws plans with JavaScript, which is switched off here.</noscript>
<script src="app.js"></script>
</body>
</html>
"""


def application(port: int, limit: float) -> Starlette:
    """The server at a port of this machine; limit: how many seconds an answer may take."""
    workers, waiting = Workers(), asyncio.Semaphore(MOST_WAITING)

    async def view(request: Request) -> Response:
        body = await _body(request)
        if body is None:
            return _wrong(413, f"expected at most {MOST_BYTES:,} bytes")
        try:
            # Written again, so that it is one line, whatever line ends were in it.
            question = json.dumps(json.loads(body)).encode()
        except (ValueError, RecursionError):
            return _wrong(400, "expected a JSON document")
        if waiting.locked():
            return _wrong(503, "there are too many questions at once: wait a moment")
        async with waiting:
            return await _answered(request, workers, question, limit)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await workers.close()

    routes = [
        Route("/", _Fixed(PAGE, "text/html; charset=utf-8")),
        Route("/app.js", _Fixed(asset("app.js"), "text/javascript; charset=utf-8")),
        Route("/app.css", _Fixed(asset("app.css"), "text/css; charset=utf-8")),
        Route("/api/choices", _Fixed(json.dumps(choices()), "application/json")),
        Route("/api/view", view, methods=["POST"]),
    ]
    names = tuple(f"{name}:{port}" for name in ("127.0.0.1", "localhost"))
    made = Starlette(routes=routes, middleware=[Middleware(_Guard, names=names)], lifespan=lifespan)
    made.state.workers = workers
    return made


class _Guard:
    """Refuses what does not come from the page itself, and adds the headers to all answers."""

    def __init__(self, app: ASGIApp, names: tuple[str, ...]) -> None:
        self.app, self.names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            await send(message)

        refused = self._refused(Request(scope))
        await (self.app if refused is None else refused)(scope, receive, with_headers)

    def _refused(self, request: Request) -> Response | None:
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if host not in self.names:
            return _wrong(421, f"this server answers to {' and '.join(self.names)} only")
        if origin is not None and origin not in [f"http://{name}" for name in self.names]:
            return _wrong(403, "questions are taken from the page of this server only")
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            # A link to the page may be followed from elsewhere, which is how views are shared.
            linked = request.method == "GET" and request.headers.get("sec-fetch-mode") == "navigate"
            return None if linked else _wrong(403, "questions are taken from the page of this server only")
        if request.method == "POST" and request.headers.get("content-type") != "application/json":
            return _wrong(415, "expected application/json")
        return None


class _Fixed:
    """An endpoint whose answer never changes."""

    def __init__(self, text: str, kind: str) -> None:
        self.text, self.kind = text, kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await Response(self.text, headers={"content-type": self.kind})(scope, receive, send)


async def _body(request: Request) -> bytes | None:
    """What was sent; None where it is too much."""
    found = b""
    async for part in request.stream():
        found += part
        if len(found) > MOST_BYTES:
            return None
    return found


async def _answered(request: Request, workers: Workers, question: bytes, limit: float) -> Response:
    """The answer to a question, unless it takes too long, or nobody waits for it any more."""
    asking, leaving = asyncio.create_task(workers.ask(question)), asyncio.create_task(_left(request))
    try:
        await asyncio.wait({asking, leaving}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            return Response(asking.result(), media_type="application/json")
        if leaving.done():
            return _wrong(499, "nobody waits for the answer")
        return _wrong(
            200,
            f"the search took longer than {limit:g} s and was ended: fewer axes, levels or devices take less; "
            "`meshwright plan` has no limit",
        )
    except EngineError as error:
        return _wrong(200, str(error))
    finally:
        for task in (asking, leaving):
            task.cancel()
        await asyncio.gather(asking, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    """Returns when nobody waits for the answer any more."""
    while not await request.is_disconnected():
        await asyncio.sleep(0.05)


def _wrong(status: int, message: str) -> Response:
    return Response(json.dumps({"errors": {"": message}}), status, media_type="application/json")
