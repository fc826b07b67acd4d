"""How far the figures of routers were read."""

from django.db import migrations, models

import controlplane.ids


class Migration(migrations.Migration):
    dependencies = [
        ("routing", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Intake",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=controlplane.ids.new_id, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("name", models.CharField(max_length=64, unique=True)),
                ("last_id", models.CharField(default="0-0", max_length=64)),
            ],
            options={
                "abstract": False,
            },
        ),
        migrations.AddField(
            model_name="routerprocess",
            name="number",
            field=models.PositiveBigIntegerField(default=0),
        ),
    ]
