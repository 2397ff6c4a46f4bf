"""Settings: what plans may be made of, as the command line says it; for the planner, and back as words."""

from dataclasses import dataclass, fields
from typing import Any

from meshwright.cost.pipeline import CHUNKS
from meshwright.language.program import ROOTED, Collective
from meshwright.language.synthesis import MAX_STEPS
from meshwright.planning.planner import DEFAULT_CHUNKS

ENGINES = ("torch", "mpi", "jax")
"""What plans are made for."""

MOST_CHUNKS = CHUNKS[-1]
"""The most chunks that payloads are cut into."""

MOST_STEPS = 20
"""The longest programs that may be asked for."""


@dataclass(frozen=True)
class Settings:
    """What plans may be made of; each field is the option of `meshwright plan` with its name.

    library: None for that of the system. engine: what runs the plan, None for what fits the library.
    """

    library: str | None = None
    engine: str | None = None
    chunks: int = DEFAULT_CHUNKS
    max_steps: int = MAX_STEPS
    no_rooted: bool = False
    placement_only: bool = False

    def arguments(self) -> dict[str, Any]:
        """What `plan`, `Planner` and `choose_sizes` are given.

        JAX has no rooted collectives, and lets XLA order the chunks as it likes: with it neither is planned.
        """
        jax = self.engine == "jax"
        return {
            "library": self.library,
            "max_steps": self.max_steps,
            "collectives": collectives(without_rooted=self.no_rooted or jax),
            "max_chunks": 1 if jax else self.chunks,
            "placement_only": self.placement_only,
        }

    def words(self) -> list[str]:
        """The options that say what is not the default.

        >>> Settings(chunks=4, placement_only=True).words()
        ['--chunks', '4', '--placement-only']
        """
        found = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                option = f"--{field.name.replace('_', '-')}"
                found += [option] if value is True else [option, str(value)]
        return found


def collectives(without_rooted: bool) -> list[Collective]:
    """What programs may be made of."""
    return [collective for collective in Collective if not (without_rooted and collective in ROOTED)]
