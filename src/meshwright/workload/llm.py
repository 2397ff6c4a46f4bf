"""A language model and how it is trained: what it can be cut to, what it needs, and how long it computes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import prod

from meshwright.errors import SpecError
from meshwright.text.spec import check_count, is_number, one_of, unknown

AXES = ("data", "shard", "tensor", "pipeline", "context", "expert")

DTYPES = {"fp8": 1, "bf16": 2, "fp16": 2, "fp32": 4}


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
        object.__setattr__(self, "recompute", one_of(Recompute, "recompute", str(self.recompute)))

    @property
    def dense_params(self) -> int:
        """The parameters outside experts."""
        return self.params - self.expert_params

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
            "N": f"{self.dense_params:,} parameters outside experts",
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

    def memory(self, axes: Mapping[str, int]) -> float:
        """The bytes that a device needs, at the busiest stage: the first.

        Weights, gradients and 12 bytes of optimizer state per parameter (ZeRO: Rajbhandari et al., 2020), two gathered
        layers with shard, and activations (Korthikanti et al., 2023): 34 s b h per layer with selective recomputation,
        cut by tensor as far as sequence parallelism goes, or 2 s b h when all is recomputed, for as many micro-batches
        as 1F1B has under way. That is for values of two bytes, others in proportion; what experts add is left out.
        """
        self.check(axes)
        size = {axis: axes.get(axis, 1) for axis in AXES}
        here = (self.dense_params + self.expert_params / size["expert"]) / (size["tensor"] * size["pipeline"])
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
        active = self.dense_params + self.expert_params * self.top_k / self.experts
        per_token = 6 * active + 12 * self.layers * self.hidden * self.seq
        again = 4 / 3 if self.recompute is Recompute.FULL else 1.0
        seconds = again * per_token * self.global_batch * self.seq / prod(axes.values()) / self.flops
        return seconds * (1 + (axes.get("pipeline", 1) - 1) / self.micro_batches(axes))


def check_axes(axes: Iterable[str]) -> None:
    """Refuse axes that have no meaning for a language model."""
    for axis in axes:
        if axis not in AXES:
            raise SpecError(f"{unknown('axis', axis, AXES)}; each has its meaning for a language model")
