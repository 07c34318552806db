"""`python -m apiece` is `apiece`."""

from apiece import cli

cli.main()
