"""What is kept beside a launch: whether its log was read, and how many requests its instance got."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("caches", "0022_endpoint_tokens")]

    operations = [
        migrations.CreateModel(
            name="LaunchLog",
            fields=[
                (
                    "launch",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="log",
                        serialize=False,
                        to="caches.launch",
                    ),
                ),
                (
                    "state",
                    models.CharField(blank=True, choices=[("Due", "Due"), ("Read", "Read")], default="", max_length=4),
                ),
            ],
            options={
                "indexes": [
                    models.Index(condition=models.Q(("state", "Due")), fields=["launch"], name="caches_launch_log_due")
                ],
            },
        ),
        migrations.CreateModel(
            name="LaunchTraffic",
            fields=[
                (
                    "launch",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="traffic",
                        serialize=False,
                        to="caches.launch",
                    ),
                ),
                ("requests", models.PositiveBigIntegerField(default=0)),
            ],
        ),
    ]
