"""Entry point of `python -m transformer_mt`, which is the same as `tmt`."""

from transformer_mt.cli.main import main

if __name__ == "__main__":
    main()
