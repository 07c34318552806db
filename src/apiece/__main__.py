"""`apiece`, and `python -m apiece`: Ctrl-C is as quiet while modules are imported as later."""

import os
import signal


def main() -> None:
    """Run the command line."""
    # Until the command line has its own handler, a Ctrl-C would print the traceback of an import.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from apiece import cli

    cli.main()


if __name__ == "__main__":
    main()
