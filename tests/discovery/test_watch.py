"""The watch of rank 0 over the others: who is gone, who hangs, and who is merely slow."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

if TYPE_CHECKING:  # else all workers would load PyTorch, not only those that run these tests
    from meshwright.measure.peers.watch import Watched, Watcher


@contextmanager
def watching(timeout: float, host: str = "127.0.0.1", ranks: int = 4) -> "Iterator[tuple[Watcher, list[Watched]]]":
    """Rank 0 and the ranks that it watches, all in this process."""
    from torch._C._distributed_c10d import HashStore

    from meshwright.measure.peers import watch
    from meshwright.measure.peers.watch import Watched, Watcher

    store = HashStore()
    with pytest.MonkeyPatch.context() as patched, ExitStack() as stack:
        patched.setenv("MASTER_ADDR", host)
        patched.setenv("MASTER_PORT", "1")
        patched.setattr(watch, "_key", lambda: "watch")
        first = stack.enter_context(closing(Watcher(store, ranks, timeout)))
        yield first, [stack.enter_context(closing(Watched(store, rank, 60.0))) for rank in range(1, ranks)]


def cut(one: "Watched") -> None:
    """What the system does with the connections of a process that ends."""
    assert one._line is not None
    one._line.shutdown(socket.SHUT_RDWR)


def test_those_that_hang_up_without_a_word_are_dead() -> None:
    with watching(3600.0) as (first, others):
        cut(others[0])
        cut(others[2])
        assert first.gone() == [1, 3]  # rank 2 is in no call, and is not waited for


def test_those_that_left_or_are_in_a_call_are_alive() -> None:
    with watching(3600.0) as (first, others):
        others[0].close()
        others[1].call(begins=True)
        late = threading.Timer(0.3, others[2].call, (True,))
        late.start()
        assert first.gone() == []
        late.join()


def test_those_that_do_not_come_until_the_timeout_hang() -> None:
    with watching(2.0) as (first, others):
        for one in others[1:]:
            one.call(begins=True)
            one.call(begins=False)
        others[0].close()
        others[1].close()
        assert first.gone() == [3]


def test_strangers_are_nobody() -> None:
    with watching(3600.0) as (first, others):
        assert first._server is not None
        for said in (b"", b"GET / HTTP/1.1\r\n\r\n" * 5, b"?" * 42, b"x"):
            with socket.create_connection(("127.0.0.1", first._server.getsockname()[1])) as stranger:
                stranger.sendall(said)
        for one in others[:2]:
            one.close()
        cut(others[2])
        assert first.gone() == [3]


def test_without_a_connection_nobody_is_named() -> None:
    with (
        patch("socket.create_connection", side_effect=TimeoutError),
        watching(3600.0) as (first, others),
    ):
        others[0].call(begins=True)
        assert first.gone() == []
    with watching(3600.0, host="no host") as (first, others):
        assert first.gone() == []
