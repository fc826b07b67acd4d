"""The demo on a Kubernetes cluster: what it makes there, and again on the new cluster of the next start."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.core.management import CommandError, call_command
from django.utils import timezone

from caches.models import ModelVersion, Pin, PublishedManifest, SourceConnection
from caches.services.demo import content as demo_content
from caches.services.demo import setting_up as demo
from caches.services.publishing import artifacts_publish
from controlplane.clusters.kubernetes import names
from controlplane.clusters.models import Cluster, Node, NodePool
from controlplane.clusters.registry import gateway_for
from controlplane.embedded.seaweed import S3
from tests.contracts.kube import KubeContractCluster, empty
from tests.plugins.kube import KubeApi

pytestmark = pytest.mark.django_db


@pytest.fixture
def state(
    contract: KubeContractCluster,
    kube_api: KubeApi,
    tmp_path: Path,
    settings: LazySettings,
    s3_server: S3,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Path]:
    settings.STATE_DIR, settings.SECRETS_DIR = tmp_path, tmp_path / "secrets"
    small = [dataclasses.replace(m, shard_mib=(1,) * len(m.shard_mib)) for m in demo_content.DEMO_MODELS]
    monkeypatch.setattr(demo, "DEMO_MODELS", small)
    (tmp_path / "s3.json").write_text(json.dumps(dataclasses.asdict(s3_server)))
    monkeypatch.setenv("HEARTH_DEMO_S3_FILE", str(tmp_path / "s3.json"))
    monkeypatch.setenv("HEARTH_DEMO_KUBECONFIG", str(kube_api.kubeconfig))
    monkeypatch.setenv("HEARTH_DEMO_CACHE_PATH", "/opt/warm")
    machines(contract)
    yield tmp_path
    empty(contract.client)


def machines(contract: KubeContractCluster) -> None:
    for name, pool in (("m-1", "pool-a"), ("m-2", "pool-a"), ("m-3", "pool-b")):
        contract.add_node(name)
        labels = {"metadata": {"labels": {"hearth.dev/pool": pool}}}
        contract.client.merge(f"{names.NODES}/{name}", labels, manager="test")


def test_it_keeps_the_models_of_s3_on_the_clusters_nodes(state: Path) -> None:
    call_command("bootstrap_demo")
    cluster = Cluster.objects.get()
    assert (cluster.name, cluster.type) == ("kube", "Kubernetes")
    assert set(NodePool.objects.values_list("name", "cache_path")) == {("pool-a", "/opt/warm"), ("pool-b", "/opt/warm")}
    assert dict(Node.objects.values_list("name", "pool__name")) == {"m-1": "pool-a", "m-2": "pool-a", "m-3": "pool-b"}
    # A pod sees no folder of this machine, so nothing comes from one.
    assert list(SourceConnection.objects.values_list("name", flat=True)) == ["demo-s3"]
    assert ModelVersion.objects.filter(state="Available", connection__name="demo-s3").count() == 4
    assert Pin.objects.count() == 3


def test_it_tells_the_new_cluster_of_the_next_start_everything(state: Path, contract: KubeContractCluster) -> None:
    call_command("bootstrap_demo")
    cluster = Cluster.objects.get()
    artifacts_publish(cluster=cluster, gateway=gateway_for(cluster), now=timezone.now())
    known = PublishedManifest.objects.count()
    empty(contract.client)
    machines(contract)
    uid = contract.client.get(names.CLUSTER)["metadata"]["uid"]
    assert Cluster.objects.filter(uid=uid).update(uid="that of the start before") == 1
    call_command("bootstrap_demo")
    artifacts_publish(cluster=cluster, gateway=gateway_for(cluster), now=timezone.now() + timedelta(seconds=1))
    assert known == PublishedManifest.objects.count() == 4
    assert len(contract.client.get(names.MANIFESTS)["items"]) >= 4


def test_it_needs_to_know_where_nodes_keep_models(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEARTH_DEMO_CACHE_PATH")
    with pytest.raises(CommandError, match="HEARTH_DEMO_CACHE_PATH must name the folder"):
        call_command("bootstrap_demo")


def test_it_makes_the_sign_in_before_there_is_a_cluster(state: Path) -> None:
    call_command("bootstrap_demo", "--sign-in")
    assert (state / "admin-password").exists()
    assert not Cluster.objects.exists()
