"""Phrases for messages: lists of ranks, and the first line of a library's error."""

import re
from collections.abc import Iterable


def rank_list(ranks: Iterable[int]) -> str:
    """Ranks in words; at most eight are named."""
    ranks = list(ranks)
    shown = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) != 1 else ''} {shown}"


_SOURCE = re.compile(
    r"\[[^]]*\.(?:cc|cpp|cu|h|hpp):\d+[^]]*\]|(?:\b(?:at|in):? )?/\S+\.(?:cc|cpp|cu|h|hpp):\d+,?|GLHF!?"
)
"""What is left out of a library's message: places in its source, and gloo's "GLHF!"."""


def first_line(error: BaseException) -> str:
    """The first line of a library's message, without the places in its source.

    >>> first_line(RuntimeError("[/build/gloo/transport/tcp/pair.cc:547] Connection closed by peer\\nmore"))
    'Connection closed by peer'
    """
    return " ".join(_SOURCE.sub("", str(error)).strip().split("\n", 1)[0].split()) or type(error).__name__
