"""Replays of recorded requests."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("operations", "0005_routing_replay"),
    ]

    operations = [
        migrations.AlterField(
            model_name="operation",
            name="kind",
            field=models.CharField(
                choices=[
                    ("ModelRegister", "Model Register"),
                    ("ModelRecheck", "Model Recheck"),
                    ("ImageRegister", "Image Register"),
                    ("PinWarm", "Pin Warm"),
                    ("PinRemove", "Pin Remove"),
                    ("EntryEvict", "Entry Evict"),
                    ("EntryScrub", "Entry Scrub"),
                    ("PoolDelete", "Pool Delete"),
                    ("EndpointApply", "Endpoint Apply"),
                    ("RoutingReplay", "Routing Replay"),
                    ("LaunchTrial", "Launch Trial"),
                ],
                max_length=32,
            ),
        ),
    ]
