"""`python -m transformer_mt` is `tmt`."""

from transformer_mt.cli.main import main

if __name__ == "__main__":
    main()
