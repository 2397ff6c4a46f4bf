"""Small phrases for messages: ranks, and what a library's error says."""

import re
from collections.abc import Iterable


def rank_list(ranks: Iterable[int]) -> str:
    """Ranks in words; many are cut short."""
    ranks = list(ranks)
    shown = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) != 1 else ''} {shown}"


_SOURCE = re.compile(
    r"\[[^]]*\.(?:cc|cpp|cu|h|hpp):\d+[^]]*\]|(?:\b(?:at|in):? )?/\S+\.(?:cc|cpp|cu|h|hpp):\d+,?|GLHF!?"
)
"""Where in a library's source an error arose, on the machine that it was built on, and a wish of gloo's."""


def first_line(error: BaseException) -> str:
    """The part of a library's message that says something.

    >>> first_line(RuntimeError("[/build/gloo/transport/tcp/pair.cc:547] Connection closed by peer\\nmore"))
    'Connection closed by peer'
    """
    return " ".join(_SOURCE.sub("", str(error)).strip().split("\n", 1)[0].split()) or type(error).__name__
