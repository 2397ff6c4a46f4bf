"""The errors a user can meet. Each message says what was given, what was expected and what would fit."""


class MeshwrightError(ValueError):
    """Base of every error that Meshwright raises for what a user gave it."""


class SpecError(MeshwrightError):
    """A description cannot be read: a system, an axis list, a unit, a file."""


class PlacementError(MeshwrightError):
    """Axes do not fit the system, or a matrix is not a placement of them."""


class ProgramSyntaxError(MeshwrightError):
    """The text of a program cannot be parsed; the message marks the position."""

    def __init__(self, text: str, position: int, expected: str) -> None:
        """Point at `position` in `text`, where `expected` says what should be there."""
        self.text, self.position, self.expected = text, position, expected
        start = max(text.rfind("\n", 0, position) + 1, position - 80)  # shorten long lines
        line = text[start : position + 40].split("\n", 1)[0].replace("\t", " ")
        marker = " " * (position - start) + "^"
        super().__init__(f"cannot read the program:\n  {line}\n  {marker} {expected}")


class InvalidProgramError(MeshwrightError):
    """A program breaks a rule of the semantics; the error says which rule, in which step and which group."""

    def __init__(self, rule: str, message: str, step: int | None = None, group: str | None = None) -> None:
        """`step` counts from 1 and is None if no single step is at fault; `group` names the devices."""
        self.rule, self.step, self.group = rule, step, group
        super().__init__(message)


class TooLargeError(MeshwrightError):
    """The answer is too large to list; the message names the size and what to ask for instead."""


class EngineError(MeshwrightError, RuntimeError):
    """A plan cannot run on these processes, or a run failed; the message names the rank, the step and the group.

    agreed: whether all ranks of the group raise this same error.
    """

    def __init__(self, message: str, *, agreed: bool = False) -> None:
        """Say what is wrong."""
        self.agreed = agreed
        super().__init__(message)


class MeshwrightWarning(UserWarning):
    """Something that works but is probably not intended: a plan runs on another library, or with other payloads, than
    planned.
    """
