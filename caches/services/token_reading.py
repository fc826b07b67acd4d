"""The credentials of a source connection: a secret by name, or a token that an endpoint's namespace holds."""

from __future__ import annotations

from collections.abc import Mapping

from caches.models import SourceConnection
from caches.models.tokens import EndpointToken
from caches.sources.problems import access_denied
from caches.sources.secrets import read_secret
from controlplane.clusters.gateway import ClusterGateway, GatewayError, NotApplicable, NotFound, Refused
from controlplane.clusters.registry import gateway_for
from controlplane.errors import Transient

LONGEST = 4096


class Unreadable(Exception):
    """Why there is no token to be had, as a sentence for its owner. ``missing``: there simply is none."""

    def __init__(self, text: str, *, missing: bool = False) -> None:
        super().__init__(text)
        self.missing = missing


def connection_secret(connection: SourceConnection) -> Mapping[str, str]:
    """What the connection reads with, read afresh. Permanent(AccessDenied) when it cannot be read, Transient when the
    cluster that has it does not answer."""
    token = EndpointToken.objects.select_related("cluster").filter(connection=connection).first()
    if token is None:
        return read_secret(connection.secret_name)
    try:
        return {"token": token_read(token, gateway_for(token.cluster))}
    except Unreadable as error:
        raise access_denied(connection.name, str(error), "Put the token there, or name another Secret.") from error
    except GatewayError as error:
        raise Transient("source:cluster:no-answer", f"{token.cluster.name} does not say the token: {error}") from error


def token_read(token: EndpointToken, gateway: ClusterGateway) -> str:
    """The token as its Secret has it now. Unreadable; GatewayError when the cluster does not answer."""
    where = f"{token.namespace}/{token.secret}"
    try:
        text = gateway.endpoint_secret(token.namespace, token.secret, token.key).strip()
    except NotFound as error:
        raise Unreadable(f"There is no Secret {where} with a key {token.key}.", missing=True) from error
    except (Refused, NotApplicable) as error:
        raise Unreadable(
            f"Hearth may not read the Secret {where}. Whoever manages the namespace allows it with a role "
            f"(kubectl -n {token.namespace} create role hearth-tokens --verb=get --resource=secrets "
            f"--resource-name={token.secret}) and a rolebinding of it to the service account hearth-system:hearth."
        ) from error
    if not text or len(text) > LONGEST or not all("!" <= char <= "~" for char in text):
        raise Unreadable(f"The key {token.key} of the Secret {where} holds no token.")
    return text
