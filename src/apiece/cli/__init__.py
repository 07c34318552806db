"""The command line: `apiece COMMAND`, one file a command, loaded when it is called.

A module `apiece/cli/NAME.py` with a click command called `command` is the command NAME. It loads
torch, pandas and matplotlib inside functions, so that mistakes are told at once.
"""

import errno
import importlib
import pkgutil
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from apiece import __version__
from apiece._lazy import lacking
from apiece._text import plain
from apiece.cli._command import CommandGroup, Printed, echo
from apiece.errors import ON_COMMAND_LINE, ApieceError, InputError

# The exit status that a shell reports for a program that Ctrl-C ended.
INTERRUPTED = 130
# The errors of a device that takes no more of an answer.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class Interrupted(click.ClickException):
    """Ctrl-C, with a message on what is left behind."""

    exit_code = INTERRUPTED


# Every command with its help, under what a person who opens the help looks for. The texts stand
# here, so that the help loads no command.
VERBS = {
    "Budget": {
        "explain": "What a budget promises a person, in frequencies.",
        "schema": "Write or check a table's public schema.",
    },
    "Assign": {
        "plan": "Turn budgets into a verified plan.",
        "risk": "How others' choices move a target's risk.",
        "account": "What a mechanism or a plan costs: ε, δ, advantage.",
    },
    "Train and ask": {
        "train": "Train on a table of people, each at their own budget.",
        "register": "Read a table once, for the questions asked of it.",
        "query": "Answer a question about a table, with privacy.",
        "synthesize": "A synthetic table, everybody at their own budget.",
        "ledger": "One account of privacy loss for each person.",
        "withdraw": "Take a person out of everything that follows.",
    },
    "Audit": {
        "audit": "What a model leaks at least, by group.",
        "sensitivity": "Which attribute drives a query's sensitivity.",
    },
    "Report": {
        "report": "Write the page of a run or a plan, or a run's papers.",
    },
}


class CommandFolder(CommandGroup):
    """A group whose commands are the modules of this package."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under their verbs."""
        names = self.list_commands(ctx)
        width = max(map(len, names))
        for verb, commands in VERBS.items():
            with formatter.section(verb):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])
        # A command that a contributor has just added is loaded for its help.
        listed = {name for commands in VERBS.values() for name in commands}
        rows = []
        for name in names:
            if name not in listed:
                command = self.get_command(ctx, name)
                if command is not None:
                    rows.append((name.ljust(width), command.get_short_help_str(60)))
        if rows:
            with formatter.section(
                "Other",
            ):
                formatter.write_dl(rows)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        # A module in this folder is a command; those with an underscore are what commands share.
        modules = [module.name for module in pkgutil.iter_modules(__path__)]
        return sorted(
            name
            for name in modules
            if not name.startswith(
                "_",
            )
        )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of the module `cmd_name`, or None."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = importlib.import_module(f"{__name__}.{cmd_name}").command
        return command


@click.group(
    cls=CommandFolder,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: apiece train examples/adult.toml",
)
@click.version_option(__version__, prog_name="apiece")
def group() -> None:
    """Individualized differential privacy: every record has its own privacy budget."""


def run(arguments: Sequence[str]) -> int:
    """Run one command of `apiece` and return its exit status, as `run_command` does."""
    return run_command(group, arguments, "apiece")


def run_command(command: click.Command, arguments: Sequence[str], program: str) -> int:
    """Run a command line and return its exit status: 0, 2 on bad input, 1 on any other failure.

    An error that apiece raises on purpose is one line on stderr. The status is 130 after Ctrl-C,
    with nothing on stdout.

    Args:
        command: What is run, a group of commands or one.
        arguments: Words after the program's name.
        program: Name with which help and messages begin.
    """
    name = program
    if isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        name = f"{program} {arguments[0]}"
    Printed.begun = False
    Printed.interrupted = False
    # Messages name options from here on, and not parameters.
    token = ON_COMMAND_LINE.set(True)
    try:
        result = command.main(args=list(arguments), prog_name=program, standalone_mode=False)
    except click.exceptions.Exit as error:
        return int(error.exit_code)
    except (Exception, KeyboardInterrupt) as error:
        failure = _describe_failure(error, name)
        if failure is None:
            raise
        message, status = failure
    else:
        return result if isinstance(result, int) and not isinstance(result, bool) else 0
    finally:
        ON_COMMAND_LINE.reset(token)
    if Printed.interrupted and status != INTERRUPTED:
        # A library made another error of the Ctrl-C.
        message = "interrupted"
        status = INTERRUPTED
    # From here on a second Ctrl-C adds nothing.
    Printed.begun = True
    echo(plain(f"{name}: {' '.join(message.split())}"), err=True)
    return status


def _describe_failure(error: BaseException, name: str) -> tuple[str, int] | None:
    """Return the message and the exit status of an expected error; None for a fault of apiece."""
    match error:
        # From click's own errors to those of the system; what is none of them is a fault of apiece,
        # with a traceback.
        case click.UsageError():
            command = name if error.ctx is None else error.ctx.command_path
            return f"{error.format_message()} (see {command} --help)", 2
        case click.ClickException():
            return error.format_message(), int(error.exit_code)
        case InputError():
            return str(error), 2
        case ApieceError():
            return str(error), 1
        case KeyboardInterrupt() | click.Abort():
            return str(error) or "interrupted", INTERRUPTED
        case ModuleNotFoundError() if (error.name or "").split(".")[0] != "apiece":
            return str(lacking(error.name)), 2
        # An error of a named file is an `ApieceError`: what is left is standard output.
        case OSError() if error.errno in FULL:
            return f"standard output: cannot be written ({error.strerror})", 1
    return None


def main() -> None:
    """Run `apiece` and leave with its exit status."""
    run_program(group, "apiece")


def run_program(command: click.Command, name: str) -> NoReturn:
    """Run the command line of this process and leave with its exit status."""
    signal.signal(signal.SIGINT, _handle_interrupt)
    status = run_command(command, sys.argv[1:], name)
    # While Python shuts down its own handler is gone, and a Ctrl-C would end in a traceback.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        # `run` has said so; Python would try once more, and leave with a status of its own.
        sys.stdout = None
    sys.exit(status)


def _handle_interrupt(*_: object) -> None:
    """Take a Ctrl-C: an answer that has begun to be printed is printed whole, with status 0."""
    if not Printed.begun:
        Printed.interrupted = True
        raise KeyboardInterrupt
