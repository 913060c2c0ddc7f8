"""The `repro` command, also as `python -m repro`, which torchrun needs."""

import atexit
import gc
import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from importlib.util import find_spec

from repro.io import signals
from repro.io.temporary import own_folder


def main() -> int:
    """Install the handlers of signals before slow imports."""
    # Garbage collections, and Python's own end, would be up to a third of their time.
    is_short = sys.argv[1:2] in (["predict"], ["report"])
    signals.install_handlers()
    # `signals.check` takes up an interrupt that met a callback, so Python need not print it.
    hook = sys.unraisablehook
    sys.unraisablehook = lambda error: error.exc_type is KeyboardInterrupt or hook(error)
    if find_spec("tyro") is None:
        print("error: commands need `pip install 'gpipe-repro[experiments]'`", file=sys.stderr)
        return 2
    try:
        # Libraries put files of their own into the temporary folder. They go with ours, at exit and
        # after those libraries have ended, since they are not imported yet.
        opened = ExitStack()
        atexit.register(opened.close)
        tempfile.tempdir = os.environ["TMPDIR"] = str(opened.enter_context(own_folder()))
        if is_short:
            gc.disable()
        from repro.cli import main

        signals.check()
    except BaseException:
        if not signals.was_signalled():
            raise
        print("interrupted: nothing had begun", file=sys.stderr)
        return signals.exit_status()
    code = main.main()
    if signals.was_signalled():
        # All is said. Python's own end takes tenths of a second, in which a signal would kill it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if is_short:  # it does not return
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
