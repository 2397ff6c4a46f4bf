"""What the server of `meshwright explore` answers, and whom it refuses."""

import asyncio
import json
from typing import Any

import pytest

from meshwright.show.asked import MOST_CHARACTERS, answer, choices
from meshwright.show.server import HEADERS, MOST_BYTES, application
from tests.cli.test_verbs import run_json

PORT = 8642
HOST = {"host": f"127.0.0.1:{PORT}"}
PAGE = {**HOST, "origin": f"http://127.0.0.1:{PORT}", "content-type": "application/json"}
ASKED = {"system": "node=2@1GB/s,gpu=4@8GB/s", "axes": "data=4,tensor=2", "reductions": "data=64MiB\ntensor=1MiB*3"}


def reply(
    method: str, path: str, headers: dict[str, str], body: bytes = b"", limit: float = 300.0
) -> tuple[int, dict[str, str], bytes]:
    """What the server replies: status, headers and body."""
    app, sent = application(PORT, limit), []
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if not parts:
            await asyncio.sleep(3600)
        return parts.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    async def go() -> None:
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b""}
        scope |= {"headers": pairs, "http_version": "1.1", "scheme": "http", "root_path": ""}
        await app(scope, receive, send)
        await app.state.workers.close()

    asyncio.run(go())
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], found, b"".join(message.get("body", b"") for message in sent[1:])


@pytest.mark.parametrize("path", ["/", "/app.js", "/app.css", "/api/choices"])
def test_the_page_is_served_with_strict_headers(path: str) -> None:
    status, headers, body = reply("GET", path, HOST)
    assert status == 200
    assert body
    assert HEADERS.items() <= headers.items()
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["content-security-policy"].startswith("default-src 'none'")


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/", {"host": "evil.example"}, 421),
        ("GET", "/", {"host": f"evil.example:{PORT}"}, 421),
        ("GET", "/", {}, 421),
        ("GET", "/api/choices", {**HOST, "origin": "http://evil.example"}, 403),
        ("GET", "/api/choices", {**HOST, "sec-fetch-site": "cross-site"}, 403),
        ("GET", "/", {**HOST, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 200),
        ("POST", "/api/view", {**PAGE, "origin": "http://evil.example"}, 403),
        ("POST", "/api/view", {**PAGE, "origin": "null"}, 403),
        ("POST", "/api/view", {**PAGE, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 403),
        ("POST", "/api/view", {**PAGE, "content-type": "text/plain"}, 415),
        ("GET", "/api/view", HOST, 405),
        ("GET", "/../../etc/passwd", HOST, 404),
        ("GET", "/app.js/../server.py", HOST, 404),
        ("GET", "/sources.sha256", HOST, 404),
    ],
)
def test_what_is_not_from_the_page_is_refused(method: str, path: str, headers: dict[str, str], status: int) -> None:
    assert reply(method, path, headers, b"{}")[0] == status


def test_a_question_may_not_be_long() -> None:
    assert reply("POST", "/api/view", PAGE, b" " * (MOST_BYTES + 1))[0] == 413


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 60_000])
def test_a_question_is_json(body: bytes) -> None:
    assert reply("POST", "/api/view", PAGE, body)[0] == 400


def test_an_answer_is_what_the_command_line_says() -> None:
    question = json.dumps(ASKED).replace(", ", ",\r\n")  # line ends between fields mean nothing
    status, _, body = reply("POST", "/api/view", PAGE, question.encode())
    assert status == 200
    view = json.loads(body)["view"]
    words = ["--reduce", "data=64MiB", "--reduce", "tensor=1MiB*3"]
    told = run_json("plan", "--system", ASKED["system"], "--axes", ASKED["axes"], *words)
    assert [plan["matrix"] for plan in view["plans"]] == [one["placement"]["matrix"] for one in told["candidates"]]
    assert [plan["seconds"] for plan in view["plans"]] == pytest.approx(
        [one["seconds"] for one in told["candidates"]], rel=1e-5
    )


def test_the_library_is_that_of_the_system_unless_it_is_given() -> None:
    system = {**ASKED, "system": "dgx-h100:2", "axes": "data=16", "reductions": "data=1MiB"}
    assert answer(system)["view"]["library"] == "nccl"
    assert answer({**system, "library": "ring"})["view"]["library"] == "ring"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"chunks": "1"}, ["--chunks", "1"]),
        ({"placement_only": "yes"}, ["--placement-only"]),
        ({"engine": "jax"}, ["--engine", "jax"]),
        ({"max_steps": "2", "no_rooted": "yes"}, ["--max-steps", "2", "--no-rooted"]),
        ({"constraints": "inside tensor=node\nrow data=2,2"}, ["--inside", "tensor=node", "--row", "data=2,2"]),
    ],
)
def test_options_are_those_of_the_command_line(fields: dict[str, str], words: list[str]) -> None:
    asked = {**ASKED, "system": "node=2@1GB/s+5us,gpu=4@3GB/s", "reductions": "data=64MiB", "library": "nccl"}
    view = answer({**asked, **fields})["view"]
    given = ["--system", asked["system"], "--axes", asked["axes"], "--reduce", "data=64MiB", "--library", "nccl"]
    told = run_json("plan", *given, *words)["candidates"]
    assert [plan["seconds"] for plan in view["plans"]] == pytest.approx([one["seconds"] for one in told], rel=1e-5)
    programs = [plan["communications"][0]["program"] for plan in view["plans"]]
    assert programs == [one["reductions"][0]["program"] for one in told]
    (line,) = (each["text"] for each in view["snippets"] if each["name"] == "Command line")
    assert all(word in line for word in words if "tensor" not in word and word not in ("--inside", "--row", "data=2,2"))


def test_sizes_are_chosen_as_on_the_command_line() -> None:
    asked = {"system": "dgx-h100:16", "axes": "", "workload": "dense-70b", "choose": "data,shard,tensor,pipeline"}
    sizes = answer(asked)["view"]["sizes"]
    told = run_json("plan", "--system", asked["system"], "--workload", asked["workload"], "--choose", asked["choose"])
    assert [each["axes"] for each in sizes["best"]] == [
        ",".join(f"{axis}={size}" for axis, size in one["axes"].items()) for one in told["sizes"]["best"][:8]
    ]
    assert (sizes["tried"], sizes["ways"]) == (told["sizes"]["tried"], told["sizes"]["ways"])


def test_a_search_that_takes_too_long_is_ended_and_says_so() -> None:
    status, _, body = reply("POST", "/api/view", PAGE, json.dumps(ASKED).encode(), limit=0.001)
    assert status == 200
    assert "took longer than 0.001 s and was ended" in json.loads(body)["errors"][""]


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"system": "dgx-h1000"}, "system", "did you mean 'dgx-h100'"),
        ({"system": "/etc/passwd"}, "system", "unknown preset '/etc/passwd'"),
        ({"system": "cluster.yaml"}, "system", "unknown preset 'cluster.yaml'"),
        ({"system": "a=1,b.yaml"}, "system", "is not NAME=COUNT"),
        ({"system": "node=2,gpu=4"}, "system", "has no bandwidth"),
        ({"axes": "data=4,tensor=3"}, "axes", "tensor=2 would fit"),
        ({"axes": "data"}, "axes", "is not NAME=COUNT"),
        ({"reductions": ""}, "reductions", "expected at least one reduction"),
        ({"reductions": "data=64MB\nmodel=1MiB"}, "reductions", "unknown axis 'model'"),
        ({"reductions": "data=64"}, "reductions", "has no unit"),
        ({"workload": "../../x"}, "workload", "unknown workload"),
        ({"workload": "dense-70b"}, "axes", ""),
        ({"library": "/tmp/x.yaml"}, "library", "unknown library"),
        ({"constraints": "inside tensor"}, "constraints", "is not AXIS=LEVEL"),
        ({"constraints": "within tensor=node"}, "constraints", "unknown constraint 'within'"),
        ({"constraints": "inside data=gpu"}, "constraints", ""),
        ({"constraints": "inside data=rack"}, "constraints", "unknown level 'rack'"),
        ({"chunks": "0"}, "chunks", "expected a whole number from 1 to 64, not '0'; empty means 16"),
        ({"chunks": "4.5"}, "chunks", "from 1 to 64"),
        ({"max_steps": "21"}, "max_steps", "from 1 to 20"),
        ({"engine": "gloo"}, "engine", "unknown engine 'gloo'"),
        ({"engine": "jax", "reductions": "broadcast:data=1MiB"}, "engine", "no program of at most 5 steps"),
        ({"no_rooted": "yes", "reductions": "broadcast:data=1MiB"}, "no_rooted", "no program of at most 5 steps"),
        ({"no_rooted": "on"}, "no_rooted", "expected 'yes'"),
        ({"placement_only": "true"}, "placement_only", "expected 'yes'"),
        ({"choose": "data"}, "choose", "for a workload that describes its model"),
        ({"choose": "data", "workload": "dense-70b"}, "choose", "data is given (4) and to be chosen"),
        ({"choose": "data,,", "workload": "dense-70b"}, "choose", "axes to choose"),
        ({"choose": "data", "workload": "dense-7b"}, "workload", "unknown workload"),
        ({"choose": "data,tensor,pipeline", "axes": "", "workload": "dense-70b"}, "choose", "none of"),
        ({"axes": "x" * (MOST_CHARACTERS + 1)}, "axes", "at most 4000 characters"),
        ({"reductions": "data=1MiB\n" * 100}, "reductions", "at most 64 lines"),
        ({"axes": 7}, "axes", "expected text"),
        ({"path": "x"}, "", "unknown field 'path'"),
    ],
)
def test_what_is_wrong_is_said_of_the_field(change: dict[str, Any], field: str, message: str) -> None:
    (found,) = answer({**ASKED, **change})["errors"].items()
    assert found[0] == field
    assert message in found[1]


@pytest.mark.parametrize("document", [None, [], "x", 7, {}])
def test_what_is_no_question_is_refused(document: Any) -> None:
    assert answer(document)["errors"]


def test_every_example_has_an_answer() -> None:
    """But for the largest, which the benchmark asks: the fields of examples fit each other."""
    known = choices()
    for example in [known["start"], *known["presets"][:3], known["workloads"][0]]:
        asked = {key: example[key] for key in ("system", "axes", "reductions", "workload")}
        assert "view" in answer(asked), example
