"""Descriptions of language models as text: options of the command line, and the `model` of a workload file."""

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import yaml

from meshwright.errors import SpecError
from meshwright.text.spec import check_type, parse_count, shown, unknown
from meshwright.text.units import parse_bytes
from meshwright.text.yamlfile import Reader, boolean, mapping, parsed
from meshwright.workload.llm import DTYPES, Model, Recompute

_LETTERS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def parse_params(text: str) -> int:
    """A number of parameters, like 70B.

    >>> parse_params("1.5B")
    1500000000
    """
    check_type(text, str, "a number of parameters as text, like 70B")
    match = re.fullmatch(r"\s*([0-9]{1,20}(?:\.[0-9]{1,12})?)\s*([KMBT]?)\s*", text)
    if match is None:
        raise SpecError(f"{shown(text)} is not a number of parameters: write it like 70B, 350M or 1.5T")
    number = Fraction(match[1]) * _LETTERS[match[2]]
    if number.denominator != 1 or not number:
        raise SpecError(f"{text!r} is not a whole number of parameters above zero")
    return int(number)


def parse_flops(text: str) -> float:
    """Operations per second, like 400TFLOP/s.

    >>> parse_flops("400TFLOP/s")
    400000000000000.0
    """
    prefixes = {"G": 1e9, "T": 1e12, "P": 1e15}
    match = re.fullmatch(r"\s*([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*([GTP])FLOP/s\s*", text)
    if match is None or not float(match[1]):
        raise SpecError(f"{shown(text)} is not a rate of operations: write what a device reaches, like 400TFLOP/s")
    return float(match[1]) * prefixes[match[2]]


def _parse_dtype(text: str) -> str:
    if text not in DTYPES:
        raise SpecError(unknown("type", text, DTYPES))
    return text


def _parse_recompute(text: str) -> Recompute:
    if text not in list(Recompute):
        raise SpecError(unknown("recompute", text, list(Recompute)))
    return Recompute(text)


def _parse_whole(text: str) -> int:
    return parse_count(text, "the model", "workload", "layers: 80")


PARSERS: dict[str, Callable[[str], Any]] = {
    "params": parse_params,
    "expert_params": parse_params,
    **dict.fromkeys(("layers", "hidden", "seq", "micro_batch", "global_batch", "heads", "kv_heads"), _parse_whole),
    **dict.fromkeys(("experts", "top_k"), _parse_whole),
    "dtype": _parse_dtype,
    "gradients": _parse_dtype,
    "recompute": _parse_recompute,
    "device_memory": lambda text: float(parse_bytes(text)),
    "flops": parse_flops,
}
"""How each field of a description is read from text."""


def model_of(node: yaml.Node, source: str) -> Model:
    """A model from its description in a workload file."""
    readers: dict[str, Reader] = {name: parsed(parse) for name, parse in PARSERS.items()}
    readers["sequence_parallel"] = boolean
    needed = ["params", "layers", "hidden", "seq", "micro_batch", "global_batch"]
    values = mapping(node, source, "a model", readers, needed)
    try:
        return Model(**values)
    except SpecError as error:
        raise SpecError(f"{source} line {node.start_mark.line + 1}: {error}") from None
