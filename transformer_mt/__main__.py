"""Entry point of `tmt` and of `python -m transformer_mt`."""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during the imports prints no traceback

from transformer_mt.cli.main import main

if __name__ == "__main__":
    main()
