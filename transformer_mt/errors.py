"""What ends the program early: a user's mistake, which the command line prints with exit status 2, or a signal."""


class UserError(Exception):
    """Something the user can mend.

    The message is one to three lines that name the file, the line or key where there is one, and the remedy. It is
    printed as it stands, without a traceback.
    """


class Interrupted(Exception):  # noqa: N818  (it is no error)
    """A signal asked the program to stop; `what` says what has been saved, and how it goes on."""

    def __init__(self, signal: int, what: str) -> None:
        super().__init__(signal, what)
        self.signal, self.what = signal, what
