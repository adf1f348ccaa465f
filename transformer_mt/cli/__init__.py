"""The command line `tmt`: one module per command, and what they share."""
