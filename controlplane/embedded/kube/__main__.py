"""``python -m controlplane.embedded.kube binaries``: what needs no cluster to be running."""

from __future__ import annotations

import argparse
import sys

from controlplane.embedded.kube import binaries
from controlplane.embedded.problems import EmbeddedError


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="python -m controlplane.embedded.kube", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("binaries", help="build Kubernetes once for this machine")
    parser.parse_args()
    binaries.build(print)


if __name__ == "__main__":
    try:
        main()
    except EmbeddedError as error:
        sys.exit(str(error))
