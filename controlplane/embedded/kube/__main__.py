"""``python -m controlplane.embedded.kube COMMAND``: a cluster of this machine without anything else of Hearth."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from controlplane.embedded.kube import binaries, cleanup, own_image
from controlplane.embedded.kube.cluster import KubeCluster, missing_for_nodes
from controlplane.embedded.kube.node import MEBIBYTE
from controlplane.embedded.problems import EmbeddedError


def main() -> None:
    """Run one command."""
    arguments = _parser().parse_args()
    if arguments.command == "binaries":
        binaries.build(print)
    elif arguments.command == "prepare":
        binaries.build(print)
        if not missing_for_nodes():
            own_image.build()
    elif arguments.command == "clean":
        cleaned = [arguments.folder.absolute()] if cleanup.clean(arguments.folder) else []
        for folder in cleaned + cleanup.clean_abandoned():
            print(f"Put back what a cluster in {folder} had changed.")
    else:
        _up(arguments.folder, arguments.nodes, arguments.disk)


def _up(folder: Path, nodes: int, disk: int) -> None:
    """Run a cluster until a signal."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    binaries.build(print)
    try:
        with KubeCluster(folder, label="This cluster", registry=True) as cluster:
            for index in range(nodes):
                cluster.add_node(f"node-{chr(ord('a') + index)}", disk_bytes=disk * MEBIBYTE)
            print(
                f"Kubernetes {binaries.kubernetes_version()} is at {cluster.server}, its images at {cluster.registry}."
            )
            print(f"  export KUBECONFIG={cluster.kubeconfig}")
            print(f"  pods find their node's disk at {cluster.cache_path}; Ctrl-C stops it all", flush=True)
            while True:
                for event in cluster.supervisor.check():
                    print(event, flush=True)
                time.sleep(0.5)
    except KeyboardInterrupt:
        print("Stopped; the machine is as it was before.")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m controlplane.embedded.kube", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("binaries", help="build Kubernetes once for this machine")
    commands.add_parser("prepare", help="the same, and Hearth's own image, so that tests need seconds for it")
    up = commands.add_parser("up", help="run a cluster in FOLDER until Ctrl-C")
    up.add_argument("folder", type=Path)
    up.add_argument("--nodes", type=int, default=3, choices=range(10), metavar="0-9")
    up.add_argument("--disk", type=int, default=512, help="size of each node's store in MiB")
    clean = commands.add_parser("clean", help="put back what a killed cluster in FOLDER, or anywhere, left")
    clean.add_argument("folder", type=Path)
    return parser


if __name__ == "__main__":
    try:
        main()
    except EmbeddedError as error:
        sys.exit(str(error))
