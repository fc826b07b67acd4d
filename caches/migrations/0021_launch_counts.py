import django.db.models.deletion
from django.db import migrations, models

# Counts have another form: whatever still has its launches is counted again by the next rounds.
COUNT_AGAIN = """
    INSERT INTO caches_launchhour (cluster_id, step, start, dirty_at)
    SELECT DISTINCT cluster_id, 'Hour', date_trunc('hour', began_at, 'UTC'), now() FROM caches_launch
    ON CONFLICT DO NOTHING
"""


class Migration(migrations.Migration):
    dependencies = [("caches", "0020_rollout_pods")]

    operations = [
        migrations.RunSQL("DELETE FROM caches_launchcount", migrations.RunSQL.noop),
        migrations.AlterModelOptions(
            name="launch",
            options={"ordering": [models.OrderBy(models.F("began_at"), descending=True, nulls_last=True), "-id"]},
        ),
        migrations.RemoveConstraint(
            model_name="launchcount",
            name="caches_launch_count_once",
        ),
        migrations.RemoveConstraint(
            model_name="launchhour",
            name="caches_launch_hour_once",
        ),
        migrations.RemoveIndex(
            model_name="launch",
            name="caches_launch_began",
        ),
        migrations.RemoveIndex(
            model_name="launch",
            name="caches_launch_endpoint",
        ),
        migrations.RemoveIndex(
            model_name="launch",
            name="caches_launch_node",
        ),
        migrations.RemoveIndex(
            model_name="launchcount",
            name="caches_launch_count_start",
        ),
        migrations.AddField(
            model_name="launch",
            name="miss_reason",
            field=models.CharField(
                blank=True,
                choices=[
                    ("FetchFailed", "FetchFailed"),
                    ("CacheUnusable", "CacheUnusable"),
                    ("NewNode", "NewNode"),
                    ("FirstOnNode", "FirstOnNode"),
                    ("Incomplete", "Incomplete"),
                    ("Gone", "Gone"),
                    ("Unknown", "Unknown"),
                ],
                default="",
                max_length=16,
            ),
        ),
        migrations.AddField(
            model_name="launchcount",
            name="by",
            field=models.CharField(
                choices=[("Nothing", "Nothing"), ("Class", "Class"), ("Pool", "Pool"), ("Version", "Version")],
                max_length=8,
                default="Version",
            ),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name="launchcount",
            name="reasons",
            field=models.JSONField(default=dict, help_text="why how many missed their weights"),
        ),
        migrations.AddField(
            model_name="launchhour",
            name="step",
            field=models.CharField(choices=[("Hour", "Hour"), ("Day", "Day")], default="Hour", max_length=4),
        ),
        migrations.RemoveField(model_name="launchcount", name="sketch"),
        migrations.AddField(
            model_name="launchcount",
            name="sketch",
            field=models.BinaryField(default=b"", help_text="domain.launch_sketch.Sketch of ready_seconds"),
        ),
        migrations.AddIndex(
            model_name="launch",
            index=models.Index(
                models.OrderBy(models.F("began_at"), descending=True, nulls_last=True),
                models.OrderBy(models.F("id"), descending=True),
                name="caches_launch_newest",
            ),
        ),
        migrations.AddIndex(
            model_name="launch",
            index=models.Index(
                models.OrderBy(models.F("ready_seconds"), descending=True, nulls_last=True),
                models.OrderBy(models.F("id"), descending=True),
                name="caches_launch_slow",
            ),
        ),
        migrations.AddIndex(
            model_name="launch",
            index=models.Index(fields=["cluster", "endpoint_name", "digest", "ready_at"], name="caches_launch_served"),
        ),
        migrations.AddIndex(
            model_name="launch",
            index=models.Index(fields=["node", "digest", "began_at"], name="caches_launch_first"),
        ),
        migrations.AddIndex(
            model_name="launch",
            index=models.Index(
                condition=models.Q(("end_reason__in", ("NodeLost", "TaintManagerEviction", "DeletionByTaintManager"))),
                fields=["ended_at"],
                name="caches_launch_lost",
            ),
        ),
        migrations.AddIndex(
            model_name="launchcount",
            index=models.Index(
                condition=models.Q(("by", "Version")),
                fields=["version_name", "step", "start"],
                name="caches_launch_count_of",
            ),
        ),
        migrations.AddConstraint(
            model_name="launchcount",
            constraint=models.UniqueConstraint(
                fields=(
                    "by",
                    "step",
                    "start",
                    "cluster",
                    "pool_name",
                    "version_name",
                    "event_class",
                    "weights",
                    "image",
                ),
                name="caches_launch_count_once",
            ),
        ),
        migrations.AddConstraint(
            model_name="launchhour",
            constraint=models.UniqueConstraint(fields=("cluster", "step", "start"), name="caches_launch_hour_once"),
        ),
        # Other indexes begin with these columns.
        migrations.AlterField(
            model_name="launch",
            name="cluster",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="launches",
                to="clusters.cluster",
            ),
        ),
        migrations.AlterField(
            model_name="launch",
            name="node",
            field=models.ForeignKey(
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="launches",
                to="clusters.node",
            ),
        ),
        migrations.RunSQL(COUNT_AGAIN, migrations.RunSQL.noop),
    ]
