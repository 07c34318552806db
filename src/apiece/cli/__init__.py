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

import click

from apiece import __version__
from apiece._lazy import lacking
from apiece._text import plain
from apiece.cli._command import CommandGroup, Printed, echo
from apiece.errors import ON_COMMAND_LINE, ApieceError, InputError

INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class Interrupted(click.ClickException):
    """Ctrl-C, with a message on what is left behind."""

    exit_code = INTERRUPTED


# Every command, under what a person who opens the help looks for; told here, none is loaded.
VERBS = {
    "Budget": {
        "explain": "What a budget promises a person, in frequencies.",
        "schema": "Write or check a table's public schema.",
    },
    "Assign": {
        "plan": "Turn budgets into a verified plan.",
        "risk": "How others' choices move a target's risk.",
        "attack": "The same, a row for each population.",
        "account": "What a mechanism or a plan costs: ε, δ, advantage.",
    },
    "Train and ask": {
        "train": "Train on a table of people, each at their own budget.",
        "query": "Answer a question about a table, with privacy.",
        "ledger": "One account of privacy loss for each person.",
        "withdraw": "Take a person out of everything that follows.",
    },
    "Audit": {
        "audit": "What a model leaks at least, by group.",
        "sensitivity": "Which attribute drives a query's sensitivity.",
    },
    "Report": {
        "report": "Write the page of a run or a plan, or a run's papers.",
        "reproduce": "Run the experiment behind a paper's table or figure.",
    },
}


class CommandFolder(CommandGroup):
    """A group whose commands are the modules of this package."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under their verbs."""
        width = max(map(len, self.list_commands(ctx)))
        for verb, own in VERBS.items():
            with formatter.section(verb):
                formatter.write_dl([(name.ljust(width), does) for name, does in own.items()])
        named = {name for own in VERBS.values() for name in own}
        if others := [name for name in self.list_commands(ctx) if name not in named]:
            with formatter.section("Other"):
                loaded = [(name, self.get_command(ctx, name)) for name in others]
                formatter.write_dl(
                    [(name.ljust(width), c.get_short_help_str(60)) for name, c in loaded if c]
                )

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))

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
    """Run one command and return its exit status: 0, 2 on bad input, 1 on any other failure."""
    # What apiece raises on purpose is one line on stderr; 130 after Ctrl-C, with nothing on stdout.
    Printed.begun = Printed.interrupted = False
    told = ON_COMMAND_LINE.set(True)
    name = " ".join(["apiece", *[a for a in arguments[:1] if not a.startswith("-")]])
    try:
        result = group.main(args=list(arguments), prog_name="apiece", standalone_mode=False)
    except click.exceptions.Exit as exit_:
        return int(exit_.exit_code)
    except click.UsageError as error:
        where = name if error.ctx is None else error.ctx.command_path
        message, status = f"{error.format_message()} (see {where} --help)", 2
    except click.ClickException as error:
        message, status = error.format_message(), int(error.exit_code)
    except ApieceError as error:
        message, status = str(error), 2 if isinstance(error, InputError) else 1
    except (KeyboardInterrupt, click.Abort) as error:
        message, status = str(error) or "interrupted", INTERRUPTED
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "apiece":
            raise
        message, status = str(lacking(error.name)), 1
    except OSError as error:  # of a file it is told where it is written
        if error.errno not in FULL:
            raise
        message, status = f"standard output: cannot be written ({error.strerror})", 1
    else:
        return result if isinstance(result, int) and not isinstance(result, bool) else 0
    finally:
        ON_COMMAND_LINE.reset(told)
    if Printed.interrupted and status != INTERRUPTED:  # a library made another error of it
        message, status = "interrupted", INTERRUPTED
    Printed.begun = True  # a second Ctrl-C adds nothing
    echo(plain(f"{name}: {' '.join(message.split())}"), err=True)
    return status


def main() -> None:
    """Run the command line and leave with its exit status."""
    signal.signal(signal.SIGINT, _pressed)
    status = run(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a handler of Python's own is gone at its end
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:  # told above; Python would try once more, and leave with a status of its own
        sys.stdout = None
    sys.exit(status)


def _pressed(*_: object) -> None:
    """Take a Ctrl-C: an answer that has begun to be printed is printed whole, with status 0."""
    if not Printed.begun:
        Printed.interrupted = True
        raise KeyboardInterrupt
