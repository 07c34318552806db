"""apiece attack: another name of `apiece risk --each`."""

from apiece.cli.risk import command as command
