"""The command line `tmt`: one module per command, and shared modules for options, input and output."""
