"""A worker that can start no process beyond its first two, as on a machine that has none left."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

from billiard import popen_fork
from celery.__main__ import main

from controlplane import worker_end

_forks = 0
_Popen: Any = popen_fork.Popen
_launch = _Popen._launch


def _refused(self: Any, process: Any) -> None:
    global _forks
    _forks += 1
    if _forks > 2:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    _launch(self, process)


if __name__ == "__main__":
    _Popen._launch = _refused
    worker_end.PATIENCE_SECONDS = 0.5
    sys.argv = ["celery", "--app=controlplane.celery", "worker", "--concurrency=2", "--queues=sick-test",
                "--without-mingle", "--without-gossip"]  # fmt: skip
    sys.exit(main())
