"""An agent for tests of the supervisor: says on its disk that it lives, and can be told to misbehave."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path


def main() -> None:
    """Write ``pid`` beside the disk, then live. A file ``crash`` there ends it at once."""
    parser = argparse.ArgumentParser()
    for option in ("--fleet", "--node", "--uid"):
        parser.add_argument(option, required=True)
    options = parser.parse_args()
    disk = Path(options.fleet) / "nodes" / options.node
    (disk / "secrets-seen").write_text(",".join(name for name in ("DATABASE_URL", "SECRET_KEY") if name in os.environ))
    (disk / "pid.new").write_text(f"{os.getpid()} {options.uid}")
    (disk / "pid.new").rename(disk / "pid")
    if (disk / "crash").exists():
        sys.exit(3)
    time.sleep(600)


if __name__ == "__main__":
    main()
