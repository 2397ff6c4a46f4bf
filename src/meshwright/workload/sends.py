"""What one training step of a language model sends, with the formula and the source of every amount.

The axes and what they do:

    data      the same weights, other sequences (DDP); gradients are all-reduced
    shard     other sequences too, and each device keeps a slice of the weights (FSDP, ZeRO-3)
    tensor    every layer's matrices are cut (Megatron-LM), with or without sequence parallelism
    pipeline  consecutive layers are stages, scheduled 1F1B
    context   every sequence is cut; keys and values are gathered
    expert    other sequences too, and each device keeps some of the experts; tokens are exchanged

The weights count as spread evenly over the layers. What the embeddings and the loss send is left out: that happens once
per step, while all of this happens once per layer.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, prod

from meshwright.language.goals import Goal
from meshwright.workload.communication import Communication, Line
from meshwright.workload.llm import DTYPES, Model, Recompute

DDP = "DDP: Li et al., VLDB 2020"
ZERO = "ZeRO-3: Rajbhandari et al., SC 2020; FSDP: Zhao et al., VLDB 2023"
MEGATRON = "tensor parallelism: Shoeybi et al., Megatron-LM, 2019"
SEQUENCE = "sequence parallelism: Korthikanti et al., MLSys 2023"
PIPELINE = "1F1B: Narayanan et al., PipeDream, SOSP 2019"
CONTEXT = "gathered keys and values: Llama 3 report, 2024, section 3.3"
EXPERT = "dispatch and combine: Lepikhin et al., GShard, ICLR 2021"


class _Step:
    """A model with its axes, and the numbers that several formulas share."""

    def __init__(self, model: Model, axes: Mapping[str, int]) -> None:
        self.model, self.axes = model, axes
        self.batches = model.micro_batches(axes)
        # How many pairs of a layer and a micro-batch a device works on, and how many forward passes each of them
        # takes, beside the one backward pass.
        self.turns = model.layers // self.size("pipeline") * self.batches
        self.passes = 2 if model.recompute is Recompute.FULL else 1
        # The bytes between two layers, for a micro-batch on one device; how many devices share them, and how the
        # formulas say that.
        self.activations = model.micro_batch * model.seq // self.size("context") * model.hidden * DTYPES[model.dtype]
        self.spread, self.over_tensor = (self.size("tensor"), " / tensor") if model.sequence_parallel else (1, "")

    def size(self, *axes: str) -> int:
        return prod(self.axes.get(axis, 1) for axis in axes)


@dataclass(frozen=True)
class _Send:
    """One kind of communication, over those of the axes `over` that are larger than one."""

    goal: Goal
    over: tuple[str, ...]
    amount: Fraction | int
    count: int
    name: str
    formula: str
    source: str


def _gradients(step: _Step) -> Iterator[_Send]:
    model, cut = step.model, step.size("tensor", "pipeline", "shard")
    width = DTYPES[model.gradients]
    amount = Fraction(model.dense_params * width, cut)
    formula = "N / (tensor x pipeline x shard) x g, once"
    yield _Send(Goal.ALL_REDUCE, ("data", "context", "expert"), amount, 1, "gradients", formula, DDP)
    amount = Fraction(model.expert_params * width, cut * step.size("expert"))
    formula = "X / (tensor x pipeline x shard x expert) x g, once"
    yield _Send(Goal.ALL_REDUCE, ("data", "context"), amount, 1, "expert gradients", formula, DDP)


def _weights(step: _Step) -> Iterator[_Send]:
    model, turns = step.model, step.turns
    for name, params, ways, each in (
        ("weights", model.dense_params, step.size("tensor"), "N / L / tensor"),
        ("expert weights", model.expert_params, step.size("tensor", "expert"), "X / L / (tensor x expert)"),
    ):
        amount = Fraction(params * DTYPES[model.dtype], model.layers * ways)
        formula = f"{each} x w, 2 x L / pipeline x m times: before each forward and each backward"
        yield _Send(Goal.ALL_GATHER, ("shard",), amount, 2 * turns, name, formula, ZERO)
        amount = Fraction(params * DTYPES[model.gradients], model.layers * ways)
        formula = f"{each} x g, L / pipeline x m times"
        yield _Send(Goal.REDUCE_SCATTER, ("shard",), amount, turns, f"{name}' gradients", formula, ZERO)


def _activations(step: _Step) -> Iterator[_Send]:
    """What the cut matrices of a layer need: a sum after attention and one after the rest, in every pass.

    With sequence parallelism a sum is a reduce-scatter, and what it cut is gathered before; the backward pass
    gathers once more, as only a slice of what the forward pass gathered is kept.
    """
    model, passes = step.model, step.passes
    sublayers = [("activations", 2, 1, "")]
    if model.expert_params:
        sublayers = [("attention", 1, 1, ""), ("experts' activations", 1, model.top_k, "k x ")]
    how = f"{passes} forward, 1 backward" if passes > 1 else "forward and backward"
    for name, sums, factor, letter in sublayers:
        times = sums * (passes + 1)
        kinds = [(Goal.ALL_REDUCE, name, times, how)]
        if model.sequence_parallel:
            kinds = [
                (Goal.ALL_GATHER, f"{name}, all-gather", times + sums, f"{how}, and again backward"),
                (Goal.REDUCE_SCATTER, f"{name}, reduce-scatter", times, how),
            ]
        for goal, called, many, why in kinds:
            formula = f"{letter}b x s / context x h x w, {many} x L / pipeline x m times: {why}"
            source = SEQUENCE if model.sequence_parallel else MEGATRON
            yield _Send(goal, ("tensor",), factor * step.activations, many * step.turns, called, formula, source)


def _stages(step: _Step) -> Iterator[_Send]:
    amount = Fraction(step.activations, step.spread)
    formula = f"b x s / context x h x w{step.over_tensor}, m times"
    for way in ("forward", "backward"):
        yield _Send(Goal.POINT_TO_POINT, ("pipeline",), amount, step.batches, f"stages, {way}", formula, PIPELINE)


def _context(step: _Step) -> Iterator[_Send]:
    model, passes = step.model, step.passes
    heads = max(Fraction(model.all_kv_heads, step.size("tensor")), Fraction(1))  # no device has less than one
    whole = 2 * model.micro_batch * model.seq * model.hidden * DTYPES[model.dtype]
    amount, formula = whole * heads / model.all_heads, "2 x b x s x h x v / tensor x w,"
    often = f"{formula} {1 + passes} x L / pipeline x m times: in each pass"
    gathers = (1 + passes) * step.turns
    yield _Send(Goal.ALL_GATHER, ("context",), amount, gathers, "keys and values", often, CONTEXT)
    once = f"{formula} L / pipeline x m times"
    yield _Send(Goal.REDUCE_SCATTER, ("context",), amount, step.turns, "their gradients", once, CONTEXT)


def _experts(step: _Step) -> Iterator[_Send]:
    times = 2 * (1 + step.passes)
    amount = Fraction(step.model.top_k * step.activations, step.spread)
    often = f"{times} x L / pipeline x m times: there and back, in each pass"
    formula = f"k x b x s / context x h x w{step.over_tensor}, {often}"
    count, name = times * step.turns, "tokens to experts and back"
    yield _Send(Goal.ALL_TO_ALL, ("expert",), amount, count, name, formula, EXPERT)


_GROUPS: dict[str, Callable[[_Step], Iterator[_Send]]] = {
    "gradients": _gradients,
    "weights": _weights,
    "activations": _activations,
    "stages": _stages,
    "context": _context,
    "experts": _experts,
}

GROUPS = tuple(_GROUPS)
"""The groups of communications that may overlap with computation."""


def step_lines(model: Model, axes: Mapping[str, int]) -> list[Line]:
    """The communications of one step; none for axes of size 1, nor for what the model does not have."""
    model.check(axes)
    step, lines = _Step(model, axes), []
    for group, sends in _GROUPS.items():
        for send in sends(step):
            over = tuple(axis for axis in axes if axis in send.over and axes[axis] > 1)
            if over and send.amount:
                one = Communication(over, ceil(send.amount), send.count, send.goal, send.name)
                lines.append(Line(one, group, send.formula, send.source))
    return lines
