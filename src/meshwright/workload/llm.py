"""What one training step of a language model sends, derived from the model's description and the sizes of its axes.

The axes and what they do:

    data      the same weights, other sequences (DDP); gradients are all-reduced
    shard     other sequences too, and each device keeps a part of the weights (FSDP, ZeRO-3)
    tensor    every layer's matrices are cut (Megatron-LM), with or without sequence parallelism
    pipeline  consecutive layers are stages, scheduled 1F1B
    context   every sequence is cut; keys and values are gathered
    expert    other sequences too, and each device keeps some of the experts; tokens are exchanged

Weights are taken to be spread evenly over the layers. What the embeddings and the loss need beyond that is left out: it
is once per step, where these are once per layer.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import ceil, prod
from typing import Any

import yaml

from meshwright.errors import SpecError
from meshwright.language.goals import Goal
from meshwright.text.spec import check_count, check_type, is_number, parse_count, shown, unknown
from meshwright.text.units import parse_bytes
from meshwright.text.yamlfile import Reader, boolean, mapping, parsed
from meshwright.workload.communication import Communication, Reduction, Transfer

AXES = ("data", "shard", "tensor", "pipeline", "context", "expert")

DTYPES = {"fp8": 1, "bf16": 2, "fp16": 2, "fp32": 4}

GROUPS = ("gradients", "weights", "activations", "stages", "context", "experts")
"""The groups of communications that may overlap with computation."""

Lines = list[tuple[Communication, str, str, str]]
"""Communications with the group that they overlap in, their formula, and its source."""

DDP = "DDP: Li et al., VLDB 2020"
ZERO = "ZeRO-3: Rajbhandari et al., SC 2020; FSDP: Zhao et al., VLDB 2023"
MEGATRON = "tensor parallelism: Shoeybi et al., Megatron-LM, 2019"
SEQUENCE = "sequence parallelism: Korthikanti et al., MLSys 2023"
PIPELINE = "1F1B: Narayanan et al., PipeDream, SOSP 2019"
CONTEXT = "gathered keys and values: Llama 3 report, 2024, section 3.3"
EXPERT = "dispatch and combine: Lepikhin et al., GShard, ICLR 2021"


class Recompute(StrEnum):
    """What of the activations is computed again in the backward pass."""

    SELECTIVE = "selective"
    FULL = "full"


@dataclass(frozen=True)
class Model:
    """A transformer and how it is trained.

    params: all of them, those of the experts included; expert_params: those of the experts. seq: tokens in a sequence;
    micro_batch and global_batch: sequences. gradients: the type in which gradients are reduced. device_memory and
    flops: of one device, in bytes and in operations per second that it really reaches; None if not known.
    """

    params: int
    layers: int
    hidden: int
    seq: int
    micro_batch: int
    global_batch: int
    dtype: str = "bf16"
    gradients: str = "fp32"
    heads: int | None = None
    kv_heads: int | None = None
    experts: int = 1
    top_k: int = 1
    expert_params: int = 0
    sequence_parallel: bool = False
    recompute: Recompute = Recompute.SELECTIVE
    device_memory: float | None = None
    flops: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be a model."""
        for name in ("params", "layers", "hidden", "seq", "micro_batch", "global_batch", "experts", "top_k"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= 10**16:
                raise SpecError(f"the model has {name}={value!r}; expected a whole number from 1 to {10**16:,}")
        for name in ("heads", "kv_heads"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise SpecError(f"the model has {name}={value!r}; expected a positive whole number")
        for name in ("dtype", "gradients"):
            if getattr(self, name) not in DTYPES:
                raise SpecError(f"the model's {name}: {unknown('type', str(getattr(self, name)), DTYPES)}")
        if not 0 <= self.expert_params < self.params:
            raise SpecError(f"the experts have {self.expert_params:,} of {self.params:,} parameters; expected fewer")
        if (self.experts > 1) != (self.expert_params > 0):
            raise SpecError("a model with experts needs both 'experts' (more than one) and 'expert_params'")
        if self.top_k > self.experts:
            raise SpecError(f"a token goes to {self.top_k} of {self.experts} experts; expected no more than there are")
        if self.all_heads % self.all_kv_heads:
            raise SpecError(f"{self.all_heads} heads cannot share {self.all_kv_heads} key-value heads evenly")
        for name in ("device_memory", "flops"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and value > 0):
                raise SpecError(f"the model has {name}={value!r}; expected more than 0")
        if self.recompute not in list(Recompute):
            raise SpecError(unknown("recompute", str(self.recompute), list(Recompute)))
        object.__setattr__(self, "recompute", Recompute(self.recompute))

    @property
    def all_heads(self) -> int:
        """The attention heads; of 128 where not said."""
        return self.heads or max(1, self.hidden // 128)

    @property
    def all_kv_heads(self) -> int:
        """The heads of keys and values; as many as heads where not said."""
        return self.kv_heads or self.all_heads

    def symbols(self, axes: Mapping[str, int]) -> dict[str, str]:
        """What the letters in the formulas stand for."""
        values = {
            "N": f"{self.params - self.expert_params:,} parameters outside experts",
            "X": f"{self.expert_params:,} parameters of the experts",
            "L": f"{self.layers} layers",
            "h": f"{self.hidden} hidden",
            "s": f"{self.seq} tokens in a sequence",
            "b": f"{self.micro_batch} sequences in a micro-batch",
            "m": f"{self.micro_batches(axes)} micro-batches per step",
            "k": f"{self.top_k} experts per token",
            "v": f"{self.all_kv_heads}/{self.all_heads} of the heads are for keys and values",
            "w": f"{DTYPES[self.dtype]} bytes ({self.dtype})",
            "g": f"{DTYPES[self.gradients]} bytes of a gradient ({self.gradients})",
        }
        if not self.expert_params:
            del values["X"], values["k"]
        return values

    def micro_batches(self, axes: Mapping[str, int]) -> int:
        """How many micro-batches a pipeline works on in a step."""
        data, shard, expert = (axes.get(axis, 1) for axis in ("data", "shard", "expert"))
        ways = data * shard * expert * self.micro_batch
        if self.global_batch % ways:
            raise SpecError(
                f"a global batch of {self.global_batch} sequences cannot be split over data={data} x shard={shard} x "
                f"expert={expert} in micro-batches of {self.micro_batch}: it must be a multiple of {ways}"
            )
        return self.global_batch // ways

    def check(self, axes: Mapping[str, int]) -> None:
        """Refuse axis sizes that the model cannot be cut to."""
        check_axes(axes)
        for axis, size in axes.items():
            check_count(size, f"axis {axis!r}", "data=4,tensor=8")
        cuts = {"pipeline": ("layers", self.layers), "tensor": ("heads", self.all_heads)}
        cuts |= {"context": ("tokens in a sequence", self.seq), "expert": ("experts", self.experts)}
        for axis, (what, count) in cuts.items():
            if count % axes.get(axis, 1):
                raise SpecError(f"{axis}={axes[axis]} cannot cut {count} {what} evenly")
        tokens = self.seq // axes.get("context", 1)
        if self.sequence_parallel and tokens % axes.get("tensor", 1):
            raise SpecError(f"tensor={axes['tensor']} cannot cut {tokens} tokens evenly, as sequence parallelism does")
        self.micro_batches(axes)

    def lines(self, axes: Mapping[str, int]) -> Lines:
        """The communications of one step."""
        self.check(axes)
        size = {axis: axes.get(axis, 1) for axis in AXES}
        dense, sparse = self.params - self.expert_params, self.expert_params
        width, gradient = DTYPES[self.dtype], DTYPES[self.gradients]
        turns = self.layers // size["pipeline"] * self.micro_batches(axes)
        passes = 2 if self.recompute is Recompute.FULL else 1  # forward ones
        cut = size["tensor"] * size["pipeline"] * size["shard"]
        tokens = self.micro_batch * self.seq // size["context"]
        spread = size["tensor"] if self.sequence_parallel else 1
        over_tensor = " / tensor" if self.sequence_parallel else ""
        found: Lines = []

        def add(
            make: Callable[[tuple[str, ...], int, int, str], Communication],
            over: tuple[str, ...],
            amount: Fraction | int,
            count: int,
            name: str,
            group: str,
            formula: str,
            source: str,
        ) -> None:
            present = tuple(axis for axis in axes if axis in over and axes[axis] > 1)
            if present and amount:
                found.append((make(present, ceil(amount), count, name), group, formula, source))

        add(
            _goal(Goal.ALL_REDUCE),
            ("data", "context", "expert"),
            Fraction(dense * gradient, cut),
            1,
            "gradients",
            "gradients",
            "N / (tensor x pipeline x shard) x g, once",
            DDP,
        )
        add(
            _goal(Goal.ALL_REDUCE),
            ("data", "context"),
            Fraction(sparse * gradient, cut * size["expert"]),
            1,
            "expert gradients",
            "gradients",
            "X / (tensor x pipeline x shard x expert) x g, once",
            DDP,
        )
        for what, params, ways, letter, by in (
            ("weights", dense, size["tensor"], "N", "tensor"),
            ("expert weights", sparse, size["tensor"] * size["expert"], "X", "(tensor x expert)"),
        ):
            add(
                _goal(Goal.ALL_GATHER),
                ("shard",),
                Fraction(params * width, self.layers * ways),
                2 * turns,
                what,
                "weights",
                f"{letter} / L / {by} x w, 2 x L / pipeline x m times: before each forward and each backward",
                ZERO,
            )
            add(
                _goal(Goal.REDUCE_SCATTER),
                ("shard",),
                Fraction(params * gradient, self.layers * ways),
                turns,
                f"{what}' gradients",
                "weights",
                f"{letter} / L / {by} x g, L / pipeline x m times",
                ZERO,
            )
        self._add_tensor(add, tokens * self.hidden * width, turns, passes)
        for way in ("forward", "backward"):
            add(
                _kind(Goal.POINT_TO_POINT),
                ("pipeline",),
                Fraction(tokens * self.hidden * width, spread),
                self.micro_batches(axes),
                f"stages, {way}",
                "stages",
                f"b x s / context x h x w{over_tensor}, m times",
                PIPELINE,
            )
        heads = max(Fraction(self.all_kv_heads, size["tensor"]), Fraction(1))  # no device has less than one
        for goal, name, times in (
            (Goal.ALL_GATHER, "keys and values", 1 + passes),
            (Goal.REDUCE_SCATTER, "their gradients", 1),
        ):
            add(
                _goal(goal),
                ("context",),
                2 * self.micro_batch * self.seq * self.hidden * width * heads / self.all_heads,
                times * turns,
                name,
                "context",
                f"2 x b x s x h x v / tensor x w, {_times(times)}L / pipeline x m times"
                + (": in each pass" if goal is Goal.ALL_GATHER else ""),
                CONTEXT,
            )
        add(
            _kind(Goal.ALL_TO_ALL),
            ("expert",),
            Fraction(self.top_k * tokens * self.hidden * width, spread),
            2 * (1 + passes) * turns,
            "tokens to experts and back",
            "experts",
            f"k x b x s / context x h x w{over_tensor}, {2 + 2 * passes} x L / pipeline x m times: there and back, "
            "in each pass",
            EXPERT,
        )
        return found

    def _add_tensor(self, add: Callable[..., None], activations: int, turns: int, passes: int) -> None:
        """What the cut matrices of a layer need: a sum after attention and one after the rest, in every pass.

        With sequence parallelism a sum is a reduce-scatter, and what it cut is gathered before; the backward pass
        gathers once more, as only a part of what the forward pass gathered is kept.
        """
        parts = [("activations", 2, 1, "")]
        if self.expert_params:
            parts = [("attention", 1, 1, ""), ("experts' activations", 1, self.top_k, "k x ")]
        how = f"{passes} forward, 1 backward" if passes > 1 else "forward and backward"
        for name, sums, factor, letter in parts:
            times = sums * (passes + 1)
            kinds = [(Goal.ALL_REDUCE, name, times, how)]
            if self.sequence_parallel:
                kinds = [
                    (Goal.ALL_GATHER, f"{name}, all-gather", times + sums, f"{how}, and again backward"),
                    (Goal.REDUCE_SCATTER, f"{name}, reduce-scatter", times, how),
                ]
            for goal, called, many, why in kinds:
                add(
                    _goal(goal),
                    ("tensor",),
                    factor * activations,
                    many * turns,
                    called,
                    "activations",
                    f"{letter}b x s / context x h x w, {many} x L / pipeline x m times: {why}",
                    SEQUENCE if self.sequence_parallel else MEGATRON,
                )

    def memory(self, axes: Mapping[str, int]) -> float:
        """The bytes that a device needs, at the busiest stage: the first.

        Weights, gradients and 12 bytes of optimizer state per parameter (ZeRO: Rajbhandari et al., 2020), two gathered
        layers with shard, and activations (Korthikanti et al., 2023): 34 s b h per layer with selective recomputation,
        cut by tensor as far as sequence parallelism goes, or 2 s b h when all is recomputed, for as many micro-batches
        as 1F1B has under way. That is for values of two bytes, others in proportion; what experts add is left out.
        """
        self.check(axes)
        size = {axis: axes.get(axis, 1) for axis in AXES}
        dense, sparse = self.params - self.expert_params, self.expert_params / size["expert"]
        here = (dense + sparse) / (size["tensor"] * size["pipeline"])
        states = here / size["shard"] * (DTYPES[self.dtype] + DTYPES[self.gradients] + 12)
        gathered = 2 * here / (self.layers / size["pipeline"]) * DTYPES[self.dtype] if size["shard"] > 1 else 0.0
        one = self.micro_batch * self.seq / size["context"] * self.hidden * DTYPES[self.dtype] / 2
        tensor = size["tensor"]
        full = 34 / tensor if self.sequence_parallel else 10 + 24 / tensor
        layers = self.layers / size["pipeline"]
        per_batch = one * (layers * full if self.recompute is Recompute.SELECTIVE else layers * 2)
        once = 0.0 if self.recompute is Recompute.SELECTIVE else one * full
        return states + gathered + per_batch * min(size["pipeline"], self.micro_batches(axes)) + once

    def compute(self, axes: Mapping[str, int]) -> float | None:
        """The seconds that a device computes, or waits in the pipeline's bubble: (pipeline - 1) / m of the computing.

        Six operations per active parameter and token, and 12 L h s per token for attention (Chowdhery et al., PaLM,
        2022, appendix B); a third more where all is recomputed.
        """
        if self.flops is None:
            return None
        active = self.params - self.expert_params + self.expert_params * self.top_k / self.experts
        per_token = 6 * active + 12 * self.layers * self.hidden * self.seq
        again = 4 / 3 if self.recompute is Recompute.FULL else 1.0
        seconds = again * per_token * self.global_batch * self.seq / prod(axes.values()) / self.flops
        return seconds * (1 + (axes.get("pipeline", 1) - 1) / self.micro_batches(axes))


def check_axes(axes: Iterable[str]) -> None:
    """Refuse axes that have no meaning for a language model."""
    for axis in axes:
        if axis not in AXES:
            raise SpecError(f"{unknown('axis', axis, AXES)}; each has its meaning for a language model")


def _times(count: int) -> str:
    return f"{count} x " if count > 1 else ""


def _goal(goal: Goal) -> Callable[[tuple[str, ...], int, int, str], Communication]:
    return lambda axes, amount, count, name: Reduction(axes, amount, count, goal, name)


def _kind(kind: Goal) -> Callable[[tuple[str, ...], int, int, str], Communication]:
    return lambda axes, amount, count, name: Transfer(axes, amount, kind, count, name)


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
"""How each part of a description is read from text."""


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
