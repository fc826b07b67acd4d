"""Indexes for 0032, made while launches are written and read. What a run that was killed left is made anew."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models

OF_TRIALS = models.Q(
    ("endpoint_name__startswith", "local/trial-"), ("endpoint_name__regex", "^local/trial-[0-9a-f]{8}$")
)
TOLD_APART = [
    "by",
    "step",
    "start",
    "cluster",
    "pool_name",
    "version_name",
    "event_class",
    "weights",
    "image",
    "digest",
    "endpoint_name",
    "trial",
]
COLUMNS = ", ".join(name if name != "cluster" else "cluster_id" for name in TOLD_APART)
ONCE = models.UniqueConstraint(fields=TOLD_APART, name="caches_launch_count_once")


def _anew(name):
    return migrations.RunSQL(f"DROP INDEX CONCURRENTLY IF EXISTS {name}", migrations.RunSQL.noop)


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("caches", "0032_launch_trials")]

    operations = [
        _anew("caches_launch_count_apart"),
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(
                    f"CREATE UNIQUE INDEX CONCURRENTLY caches_launch_count_apart ON caches_launchcount ({COLUMNS})",
                    migrations.RunSQL.noop,
                ),
                migrations.RunSQL(
                    "ALTER TABLE caches_launchcount DROP CONSTRAINT IF EXISTS caches_launch_count_once,"
                    " ADD CONSTRAINT caches_launch_count_once UNIQUE USING INDEX caches_launch_count_apart",
                    migrations.RunSQL.noop,
                ),
            ],
            state_operations=[
                migrations.RemoveConstraint("launchcount", "caches_launch_count_once"),
                migrations.AddConstraint("launchcount", ONCE),
            ],
        ),
        _anew("caches_launch_count_at"),
        AddIndexConcurrently(
            "launchcount",
            models.Index(
                condition=models.Q(("by", "Endpoint")),
                fields=["endpoint_name", "step", "start"],
                name="caches_launch_count_at",
            ),
        ),
        _anew("caches_launch_part_endpoint"),
        AddIndexConcurrently(
            "launch",
            models.Index(fields=["endpoint_name", "event_class", "id"], name="caches_launch_part_endpoint"),
        ),
        _anew("caches_launch_trials"),
        AddIndexConcurrently(
            "launch",
            models.Index(condition=OF_TRIALS, fields=["began_at", "id"], name="caches_launch_trials"),
        ),
    ]
