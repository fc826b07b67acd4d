"""Every page, form and button of the browser's face, by name: tests loop over these and forget none."""

from __future__ import annotations

from collections.abc import Callable

from controlplane.operations.models import Operation
from controlplane.serving.models import STATIC_KIND, Endpoint
from tests import factories
from tests.domain.endpoints import EXAMPLES
from tests.services.trials import launch_trial
from tests.views.conftest import Stage

MANIFEST = (EXAMPLES / "inference-endpoint-config.yaml").read_text()
Address = Callable[[Stage], str]


def outside(stage: Stage) -> Endpoint:
    """An endpoint of addresses in the same cluster; made when somebody asks for it."""
    if (known := Endpoint.objects.filter(kind=STATIC_KIND).first()) is not None:
        return known
    made = factories.endpoint(of=stage.pool.cluster, kind=STATIC_KIND, namespace="static", name="outside")
    factories.variant(of=made)
    factories.instance(of=made, name="engine-1", address="10.0.0.7:8000")
    return made


def trial(stage: Stage, state: str = "Succeeded") -> Operation:
    """One that is over, or goes on, in the stage's cluster; made when somebody asks for it."""
    known = Operation.objects.filter(kind="LaunchTrial", state=state).first()
    return known or launch_trial(stage.pool.cluster, stage.llama, launches=[stage.launch], state=state)


def trials(stage: Stage) -> str:
    """The list, which has one."""
    trial(stage)
    return "/launches/trials"


PAGES: dict[str, Address] = {
    "overview": lambda s: "/",
    "fleet": lambda s: "/fleet",
    "pool": lambda s: "/fleet/lab.gpu",
    "node": lambda s: f"/nodes/{s.nodes[0].id}",
    "entries": lambda s: "/entries",
    "entry": lambda s: f"/entries/{s.ready.id}",
    "models": lambda s: "/models",
    "model": lambda s: "/models/llama",
    "version": lambda s: "/models/llama/versions/v1",
    "images": lambda s: "/images",
    "image": lambda s: f"/images/{s.image.id}",
    "endpoints": lambda s: "/endpoints",
    "endpoint": lambda s: f"/endpoints/{s.endpoint.id}",
    "routing": lambda s: f"/endpoints/{s.endpoint.id}/routing",
    "routing-variants": lambda s: f"/endpoints/{s.endpoint.id}/routing/variants",
    "launches": lambda s: "/launches",
    "launch": lambda s: f"/launches/{s.launch.id}",
    "launch-compare": lambda s: "/launches/compare?b_version=llama%20v1",
    "launch-report": lambda s: "/launches/report",
    "trials": trials,
    "trial": lambda s: f"/launches/trials/{trial(s).id}",
    "pins": lambda s: "/pins",
    "pin": lambda s: f"/pins/{s.pin.id}",
    "operations": lambda s: "/operations",
    "operation": lambda s: f"/operations/{s.operation.id}",
    "audit": lambda s: "/audit",
    "tokens": lambda s: "/tokens",
    "connections": lambda s: "/connections",
    "connection": lambda s: f"/connections/{s.llama.connection.name}",
    "search": lambda s: "/search?q=llama",
}

FORMS: dict[str, Address] = {
    "register": lambda s: "/register",
    "image-new": lambda s: "/images/new",
    "image-revoke": lambda s: f"/images/{s.image.id}/revoke",
    "image-delete": lambda s: f"/images/{s.image.id}/delete",
    "endpoint-new": lambda s: "/endpoints/new",
    "rollout-release": lambda s: f"/rollouts/{s.rollout.id}/release",
    "rollout-hold": lambda s: f"/rollouts/{s.rollout.id}/hold",
    "rollout-rollback": lambda s: f"/rollouts/{s.rollout.previous_id}/rollback",
    "routing-change": lambda s: f"/endpoints/{s.endpoint.id}/routing/change",
    "routing-explain": lambda s: f"/endpoints/{s.endpoint.id}/routing/explain",
    "routing-replay": lambda s: f"/endpoints/{s.endpoint.id}/routing/replay",
    "routing-static-new": lambda s: "/endpoints/static",
    "routing-static": lambda s: f"/endpoints/{outside(s).id}/routing/static",
    "pin-new": lambda s: "/pins/new",
    "preview": lambda s: f"/pins/new?step=preview&version={s.qwen.id}&pools={s.pool.id}&priority=500",
    "evict": lambda s: f"/entries/{s.loose.id}/evict",
    "unpin": lambda s: f"/pins/{s.pin.id}/unpin",
    "delete": lambda s: "/models/qwen/versions/v1/delete",
}

# What a button sends: the address and the fields.
BUTTONS: dict[str, Callable[[Stage], tuple[str, dict[str, str]]]] = {
    "evict": lambda s: (f"/entries/{s.loose.id}/evict", {"confirm": "qwen v1"}),
    "scrub": lambda s: (f"/entries/{s.ready.id}/scrub", {}),
    "retry": lambda s: (f"/entries/{s.failed.id}/retry", {}),
    "suspend": lambda s: (f"/pins/{s.pin.id}/suspend", {}),
    "resume": lambda s: (f"/pins/{s.pin.id}/resume", {}),
    "priority": lambda s: (f"/pins/{s.pin.id}/priority", {"priority": "700"}),
    "unpin": lambda s: (f"/pins/{s.pin.id}/unpin", {}),
    "cancel": lambda s: (f"/operations/{s.operation.id}/cancel", {}),
    "retry-operation": lambda s: (f"/operations/{s.operation.id}/retry", {}),
    "recheck": lambda s: ("/models/llama/versions/v1/recheck", {}),
    "delete": lambda s: ("/models/qwen/versions/v1/delete", {"confirm": "qwen v1"}),
    "register": lambda s: ("/register", {"model": "new", "version": "v1", "uri": "file:///nonexistent/x",
                                                "connection": str(s.llama.connection.pk)}),
    "image-register": lambda s: ("/images/new", {"reference": "registry.example/other:v1"}),
    "image-revoke": lambda s: (f"/images/{s.image.id}/revoke", {"reason": "CVE"}),
    "image-restore": lambda s: (f"/images/{s.image.id}/restore", {}),
    "image-delete": lambda s: (f"/images/{s.image.id}/delete", {"confirm": s.image.reference}),
    "endpoint-preview": lambda s: ("/endpoints/new", {"cluster": "lab", "step": "preview", "manifest": MANIFEST}),
    "endpoint-apply": lambda s: ("/endpoints/new", {"cluster": "lab", "step": "apply", "manifest": MANIFEST}),
    "routing-preview": lambda s: (f"/endpoints/{s.endpoint.id}/routing/change", {"strategy": "RANDOM"}),
    "routing-explain": lambda s: (f"/endpoints/{s.endpoint.id}/routing/explain",
                                  {"path": "/v1/completions", "body": '{"prompt": "x"}'}),
    "routing-replay": lambda s: (f"/endpoints/{s.endpoint.id}/routing/replay", {"minutes": "15"}),
    "routing-set": lambda s: (f"/endpoints/{s.endpoint.id}/routing/change", {"strategy": "RANDOM", "step": "set"}),
    "routing-shift": lambda s: (f"/endpoints/{s.endpoint.id}/routing/variants", {"weight_0": "2"}),
    "routing-static-new": lambda s: ("/endpoints/static", {"cluster": "lab", "name": "new", "addresses": "a http://x:1"}),
    "routing-static": lambda s: (f"/endpoints/{outside(s).id}/routing/static", {"addresses": "a http://x:1"}),
    "routing-static-remove": lambda s: (f"/endpoints/{outside(s).id}/routing/static/remove", {}),
    "endpoint-cache": lambda s: (f"/endpoints/{s.endpoint.id}/cache", {"image": "off"}),
    "rollout-release": lambda s: (f"/rollouts/{s.rollout.id}/release", {}),
    "rollout-hold": lambda s: (f"/rollouts/{s.rollout.id}/hold", {"amount": "2", "unit": "hours"}),
    "rollout-rollback": lambda s: (f"/rollouts/{s.rollout.previous_id}/rollback", {}),
    "trial-new": lambda s: ("/launches/trials/new", {
        "version": str(factories.of_files(s.llama, "llama.gguf").id), "cluster": "lab", "runs": "1",
        "target_seconds": "10",
    }),
    "trial-cancel": lambda s: (f"/launches/trials/{trial(s, state='Running').id}/cancel", {}),
    "pin": lambda s: ("/pins/new", {"version": str(s.qwen.id), "pools": str(s.pool.id), "priority": "500"}),
}  # fmt: skip

# Tables by page: their names as ``?table=`` takes them, the first one first.
TABLES: dict[str, tuple[str, ...]] = {
    "overview": ("in-flight", "changes"),
    "fleet": ("pools",),
    "pool": ("nodes",),
    "node": ("entries", "forecast"),
    "entries": ("entries",),
    "entry": ("history",),
    "models": ("versions",),
    "model": ("versions",),
    "version": ("warm", "manifest"),
    "images": ("images",),
    "image": ("served", "held"),
    "endpoints": ("endpoints",),
    "endpoint": ("rollouts",),
    "routing": ("shares", "engines", "instances", "routers", "policies", "windows", "failed"),
    "routing-variants": ("variants",),
    "launches": ("classes", "launches"),
    "launch": ("observations",),
    "launch-compare": ("effects",),
    "launch-report": ("worth", "bursts"),
    "trials": ("trials",),
    "trial": ("kinds", "launches"),
    "pins": ("pins",),
    "pin": ("copies", "operations"),
    "operations": ("operations",),
    "operation": ("targets", "events"),
    "audit": ("audit",),
    "tokens": ("tokens",),
    "connections": ("connections",),
    "connection": ("versions",),
}
