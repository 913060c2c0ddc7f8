"""The `repro` command, also as `python -m repro`, which torchrun needs."""

import sys

from repro.io import signals


def main() -> int:
    """Entry point; imports the rest only when Ctrl-C is already heeded."""
    signals.install_handlers()
    try:
        from repro.cli import main

        signals.check()
    except BaseException:
        if not signals.was_signalled():
            raise
        print("interrupted: nothing had begun", file=sys.stderr)
        return signals.exit_status()
    return main.main()


if __name__ == "__main__":
    sys.exit(main())
