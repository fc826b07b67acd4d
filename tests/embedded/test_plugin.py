"""The servers plugin itself: what every other test relies on."""

from __future__ import annotations

import os
import urllib.error
import urllib.request

import psycopg
import pytest
import redis

from controlplane.embedded.seaweed import S3


def test_it_gives_a_database_before_any_fixture() -> None:
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        row = connection.execute("SELECT current_setting('server_version_num')::int").fetchone()
    assert row is not None and row[0] >= 150_000


def test_it_starts_valkey_at_the_promised_address(valkey_url: str) -> None:
    assert valkey_url == os.environ["REDIS_URL"]
    with redis.Redis.from_url(valkey_url) as client:
        assert client.ping()
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


def test_it_starts_s3_that_asks_for_a_key(s3_server: S3) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(s3_server.endpoint, timeout=60)
    refused.value.close()
    assert refused.value.code == 403
    assert s3_server.secret_key not in repr(s3_server)
