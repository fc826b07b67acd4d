from django.db import migrations, models

# One grain more: whatever still has its launches is counted again by the next rounds.
COUNT_AGAIN = """
    INSERT INTO caches_launchhour (cluster_id, step, start, dirty_at)
    SELECT DISTINCT cluster_id, 'Hour', date_trunc('hour', began_at, 'UTC'), now() FROM caches_launch
    ON CONFLICT DO NOTHING
"""


class Migration(migrations.Migration):
    dependencies = [("caches", "0024_pin_of_image")]

    operations = [
        migrations.AlterField(
            model_name="launchcount",
            name="by",
            field=models.CharField(
                choices=[
                    ("Nothing", "Nothing"),
                    ("Class", "Class"),
                    ("Names", "Names"),
                    ("Pool", "Pool"),
                    ("Version", "Version"),
                ],
                max_length=8,
            ),
        ),
        migrations.AddIndex(
            model_name="launch",
            index=models.Index(fields=["event_class", "weights", "id"], name="caches_launch_part"),
        ),
        migrations.AddIndex(
            model_name="launch",
            index=models.Index(fields=["version_name", "event_class", "id"], name="caches_launch_part_version"),
        ),
        migrations.AddIndex(
            model_name="launch",
            index=models.Index(fields=["pool_name", "event_class", "id"], name="caches_launch_part_pool"),
        ),
        migrations.RunSQL(COUNT_AGAIN, migrations.RunSQL.noop),
    ]
