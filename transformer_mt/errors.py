"""A user's mistake, as one exception: the command line prints it and exits with status 2."""


class UserError(Exception):
    """Something the user can mend.

    The message is one to three lines that name the file, the line or key where there is one, and the remedy. It is
    printed as it stands, without a traceback.
    """


class Interrupted(Exception):  # noqa: N818  (it is no error)
    """A signal asked the program to stop; `what` says what has been saved, and how it goes on."""

    def __init__(self, signal: int, what: str = " and saved; the same command goes on from here") -> None:
        super().__init__(signal, what)
        self.signal, self.what = signal, what
