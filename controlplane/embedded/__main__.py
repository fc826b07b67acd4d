"""`python -m controlplane.embedded STATE`: stop the program that runs on this state, without loading Django."""

from __future__ import annotations

import sys
from pathlib import Path

from controlplane.embedded.problems import EmbeddedError
from controlplane.embedded.program import stop_running

if __name__ == "__main__":
    try:
        stop_running(Path(sys.argv[1]))
    except EmbeddedError as error:
        sys.exit(str(error))
