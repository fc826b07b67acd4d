import django.db.models.deletion
from django.db import migrations, models

import controlplane.ids


class Migration(migrations.Migration):
    dependencies = [("caches", "0021_launch_counts"), ("clusters", "0005_pool_source_paths")]

    operations = [
        migrations.CreateModel(
            name="EndpointToken",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=controlplane.ids.new_id, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("namespace", models.CharField(max_length=63)),
                ("secret", models.CharField(max_length=253)),
                ("key", models.CharField(max_length=253)),
                ("content_mac", models.CharField(blank=True, default="", max_length=64)),
                ("read_at", models.DateTimeField(null=True)),
                ("written_at", models.DateTimeField(null=True)),
                (
                    "missing",
                    models.BooleanField(
                        default=False, help_text="there simply is no such Secret, or no such key in it"
                    ),
                ),
                ("problem", models.CharField(blank=True, default="", max_length=1000)),
                (
                    "base",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="endpoint_tokens",
                        to="caches.sourceconnection",
                    ),
                ),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="endpoint_tokens",
                        to="clusters.cluster",
                    ),
                ),
                (
                    "connection",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="token",
                        to="caches.sourceconnection",
                    ),
                ),
            ],
            options={"ordering": ["namespace", "secret", "key"]},
        ),
        migrations.AddConstraint(
            model_name="endpointtoken",
            constraint=models.UniqueConstraint(
                fields=("cluster", "namespace", "secret", "key", "base"), name="caches_endpoint_token_once"
            ),
        ),
    ]
