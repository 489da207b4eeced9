"""`python -m neox_core` is `neox`."""

from neox_core.cli.main import main

main()
