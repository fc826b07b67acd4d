"""The end of a child process, seen also where an interrupt came while Python looked for it.

``Popen.poll`` and ``Popen.wait`` take a lock of the process. An exception out of a signal's handler, as Ctrl-C makes
one, can leave it held: from then on ``poll`` says for ever that the process runs, and ``wait`` waits in vain. Whoever
ends processes because of such an interrupt therefore asks the system as well, and waits for a limited time.
"""

from __future__ import annotations

import os
import subprocess
from functools import partial

from controlplane.embedded import records
from controlplane.embedded.problems import EmbeddedError

_PATIENCE = 60.0  # seconds until a process that was killed must be gone


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a child has ended; its exit code is taken then."""
    if process.poll() is None and not records.started_at(process.pid):
        try:
            pid, status = os.waitpid(process.pid, os.WNOHANG)
        except ChildProcessError:
            pid, status = process.pid, 0  # what the interrupt cut off had come that far; the code is lost
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode is not None


def await_end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a child that was killed; EmbeddedError if it stays, as the kernel's own work for it can make it."""
    if not records.wait_until(partial(has_ended, process), _PATIENCE):
        raise EmbeddedError(
            f"Process {process.pid} does not end, though it was killed. 'ps -o pid,stat,wchan,args {process.pid}' "
            "says what it waits for."
        )
