"""Verbs that are asked to end: they clean up, say so, and end with the exit code that shells expect."""

import os
import signal
import subprocess
import sys
import threading
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest

from meshwright.runtime.signals import Interrupted, fork, interrupting
from tests.cli.test_verbs import run

PLAN = ["plan", "--system", "node=2@1GB/s,gpu=2@8GB/s", "--axes", "data=4", "--reduce", "data=1MiB", "--out"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_lets_a_verb_clean_up(
    number: signal.Signals, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cleaned: list[str] = []

    def write(*_: object) -> None:
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), number)  # one more, from somebody impatient
            cleaned.append("up")

    monkeypatch.setattr(import_module("meshwright.cli.plan"), "write_plan", write)
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    done = run(*PLAN, str(tmp_path / "plan.json"))
    assert done.exit_code == code
    assert done.stderr.splitlines()[-1] == f"Error: interrupted by {number.name}"
    assert cleaned == ["up"]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_a_signal_does_not_interrupt_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def struck() -> int:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)  # and not another thread
        seen.append("forked")  # Python does more around the fork, where what is raised is lost
        return 1

    monkeypatch.setattr(os, "fork", struck)
    with pytest.raises(Interrupted, match="interrupted by SIGTERM"), interrupting():
        fork(lambda: None)
    assert seen == ["forked"]


def test_signals_that_a_process_is_started_to_ignore_stay_ignored() -> None:
    """As nohup does with SIGHUP, and shells with the SIGINT of what they start in the background."""
    code = """if True:
        import os, signal
        from meshwright.runtime.signals import Interrupted, end_at_once, interrupting
        try:
            with interrupting():
                os.kill(os.getpid(), signal.SIGHUP)
                end_at_once()
                os.kill(os.getpid(), signal.SIGHUP)
                os.kill(os.getpid(), signal.SIGINT)
        except Interrupted as ended:
            print(ended)
    """
    ignoring = partial(signal.signal, signal.SIGHUP, signal.SIG_IGN)
    done = subprocess.run([sys.executable, "-c", code], preexec_fn=ignoring, capture_output=True, text=True, check=True)
    assert done.stdout == "interrupted by SIGINT\n"
