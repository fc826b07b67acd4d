from django.db import migrations, models

BY = ["Nothing", "Class", "Names", "Digest", "Pool", "Place", "Version", "Endpoint"]
OF_TRIALS = models.Q(
    ("endpoint_name__startswith", "local/trial-"), ("endpoint_name__regex", "^local/trial-[0-9a-f]{8}$")
)

# Whatever still has its launches is counted again by the next rounds, the latest hours first. What has none any more
# stays as it was counted: nobody knows which of it trials provoked.
COUNT_AGAIN = """
    INSERT INTO caches_launchhour (cluster_id, step, start, dirty_at)
    SELECT cluster_id, 'Hour', start, now() + (now() - start) / 1000000
      FROM (SELECT DISTINCT cluster_id, date_trunc('hour', began_at, 'UTC') AS start FROM caches_launch) AS there
    ON CONFLICT DO NOTHING
"""
PLACES = """
    INSERT INTO caches_launchcount
           (cluster_id, step, by, start, trial, pool_name, endpoint_name, version_name, digest, event_class, weights,
            image, launches, ready, ended, reasons, sketch)
    SELECT cluster_id, step, 'Place', start, false, pool_name, '', version_name, '', event_class, weights, image,
           launches, ready, ended, reasons, sketch
      FROM caches_launchcount WHERE by = 'Names'
"""


class Migration(migrations.Migration):
    dependencies = [("caches", "0030_artifact_servable")]

    operations = [
        migrations.AddField("launchcount", "trial", models.BooleanField(default=False)),
        migrations.AddField("launchcount", "endpoint_name", models.CharField(blank=True, default="", max_length=320)),
        migrations.AddField("launchcount", "digest", models.CharField(blank=True, default="", max_length=80)),
        migrations.AlterField("launchcount", "by", models.CharField(choices=[(one, one) for one in BY], max_length=8)),
        migrations.RemoveConstraint("launchcount", "caches_launch_count_once"),
        migrations.AddConstraint(
            "launchcount",
            models.UniqueConstraint(
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
                    "digest",
                    "endpoint_name",
                    "trial",
                ),
                name="caches_launch_count_once",
            ),
        ),
        migrations.AddIndex(
            "launchcount",
            models.Index(
                condition=models.Q(("by", "Endpoint")),
                fields=["endpoint_name", "step", "start"],
                name="caches_launch_count_at",
            ),
        ),
        migrations.AddIndex(
            "launch",
            models.Index(fields=["endpoint_name", "event_class", "id"], name="caches_launch_part_endpoint"),
        ),
        migrations.AddIndex(
            "launch",
            models.Index(condition=OF_TRIALS, fields=["began_at", "id"], name="caches_launch_trials"),
        ),
        migrations.RunSQL([PLACES, COUNT_AGAIN], migrations.RunSQL.noop),
    ]
