"""A user's mistake, as one exception: the command line prints it and exits with status 2."""


class UserError(Exception):
    """Something the user can mend.

    The message is one to three lines that name the file, the line or key where there is one, and the remedy. It is
    printed as it stands, without a traceback.
    """


class Interrupted(Exception):  # noqa: N818  (it is no error)
    """A signal asked the run to stop; it has been saved, unless there was no room for it."""

    def __init__(self, signal: int, *, saved: bool = True) -> None:
        super().__init__(signal, saved)
        self.signal, self.saved = signal, saved
