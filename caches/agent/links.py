"""Which link an agent process gets, from its arguments. Kubernetes' and the local fleet's are imported when chosen."""

from __future__ import annotations

import argparse
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from caches.agent.ensure import OpenSource
from caches.agent.link import NodeLink
from caches.agent.mounted import Mounted
from caches.sources import open_source
from controlplane.clusters.gateway import GatewayError

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What says where the agent is."""
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--fleet", type=Path, help="folder of the local fleet")
    where.add_argument("--kubernetes", action="store_true", help="this is a pod on a node of a Kubernetes cluster")
    parser.add_argument("--node", required=True, help="name of the node")
    parser.add_argument("--uid", default="", help="uid of this incarnation of the node (a pod's token says it)")
    parser.add_argument("--server", default="", help="address of the API server (default: the cluster's own)")
    parser.add_argument("--token-file", type=Path, help="bearer token (default: the pod's)")
    parser.add_argument(
        "--source", action="append", default=[], help="folder of the node that Filesystem connections may read"
    )
    parser.add_argument("--ca-file", type=Path, help="certificate authority of the API server (default: the pod's)")


def problem(options: argparse.Namespace) -> str:
    """What is wrong with the arguments, or ""."""
    if options.fleet is not None and not options.uid:
        return "--fleet needs --uid"
    if options.kubernetes and options.root is None:
        return "--kubernetes needs --root, the folder of the node that holds the store"
    return ""


def root_of(options: argparse.Namespace) -> Path:
    """The folder that holds the store."""
    root: Path = options.root or options.fleet / "nodes" / options.node
    return root


def open_source_for(options: argparse.Namespace) -> OpenSource:
    """How sources are opened: in a pod, of the node's folders only those that were given."""
    return open_source if options.fleet is not None else Mounted(options.source)


def link_for(
    options: argparse.Namespace, stopping: threading.Event, beat: Callable[[], None] = lambda: None
) -> NodeLink | None:
    """The link. On Kubernetes it may wait for the API server to say which machine this is; None when stopped. ``beat``
    is called while it waits."""
    if options.fleet is not None:
        from controlplane.clusters.local.link import LocalLink

        return LocalLink(options.fleet, options.node, options.uid)
    return _kubernetes(options, stopping, beat)


def _kubernetes(options: argparse.Namespace, stopping: threading.Event, beat: Callable[[], None]) -> NodeLink | None:
    from controlplane.clusters.kubernetes import access
    from controlplane.clusters.kubernetes.client import KubeClient
    from controlplane.clusters.kubernetes.link import KubernetesLink, node_uid

    client = KubeClient(
        lambda: access.in_pod(options.server, token_file=options.token_file, ca_file=options.ca_file),
        agent="hearth-agent",
    )
    uid, pause = options.uid, FIRST_PAUSE_SECONDS
    while not uid:
        beat()
        try:
            # The token outranks the name: an agent that comes back late must not take itself for its successor.
            claimed = access.claimed_node(options.token_file or access.ACCOUNT / "token")
            uid = claimed[1] if claimed[0] == options.node else node_uid(client, options.node)
        except GatewayError as error:
            log.warning("not known yet which machine this is: %s", error)
            if stopping.wait(pause):
                return None
            pause = min(LONGEST_PAUSE_SECONDS, pause * 2)
    return KubernetesLink(client, options.node, uid)
