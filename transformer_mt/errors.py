"""Exceptions that end the program with a message instead of a traceback, and the hint for a mistyped file name."""

from difflib import get_close_matches
from pathlib import Path


class UserError(Exception):
    """A mistake that the user can fix. The command line prints the message and exits with status 2.

    The message names the file, line or key, and what to do. It has a few lines, or one for each mistake in a list.
    """


class MissingPackageError(UserError):
    """A package is not installed that only some commands need."""

    def __init__(self, where: str, *requirements: str) -> None:
        """`where` needs the requirements, such as `transformer_mt[serve]` for all packages of an extra."""
        quoted = " ".join(f'"{each}"' for each in requirements)
        super().__init__(f"{where}: needs more packages: pip install {quoted}")


class Interrupted(Exception):  # noqa: N818  (it is not an error)
    """A signal stopped a training after it saved a checkpoint."""

    def __init__(self, signal: int, progress: str) -> None:
        """`progress` describes the saved step and the best one. `advice` says how to resume."""
        super().__init__(signal, progress)
        self.signal, self.progress, self.advice = signal, progress, "the same command resumes"


def suggest_file(path: Path) -> str:
    """Return the hint "; did you mean FILE?" for a missing file, or ""."""
    plain = Path(str(path).replace("\\", "/"))  # as written on Windows
    similar = get_close_matches(plain.name, [other.name for other in plain.parent.glob("*")], n=1, cutoff=0.8)
    return f"; did you mean {plain.with_name(similar[0])}?" if similar else ""
