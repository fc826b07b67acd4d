"""Policies, what routers are told, and what they tell."""

import django.db.models.deletion
from django.db import migrations, models

import controlplane.ids


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("serving", "0002_instance_address"),
    ]

    operations = [
        migrations.CreateModel(
            name="Configuration",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=controlplane.ids.new_id, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("version", models.PositiveBigIntegerField(unique=True)),
                ("digest", models.CharField(max_length=64)),
                ("document", models.JSONField()),
                ("changes", models.JSONField(default=list)),
            ],
            options={
                "ordering": ["-version"],
            },
        ),
        migrations.CreateModel(
            name="RouterProcess",
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
                ("host", models.CharField(blank=True, default="", max_length=255)),
                ("address", models.CharField(blank=True, default="", max_length=300)),
                ("config_version", models.PositiveBigIntegerField(default=0)),
                ("figures", models.JSONField(default=dict)),
                ("started_at", models.DateTimeField()),
                ("seen_at", models.DateTimeField(db_index=True)),
            ],
            options={
                "ordering": ["host", "name"],
            },
        ),
        migrations.CreateModel(
            name="RoutedEndpoint",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=controlplane.ids.new_id, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("name", models.CharField(max_length=400, unique=True)),
                ("secret", models.CharField(max_length=128)),
                (
                    "endpoint",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, related_name="routed", to="serving.endpoint"
                    ),
                ),
            ],
            options={
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="RoutedVariant",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=controlplane.ids.new_id, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("membership_version", models.PositiveBigIntegerField(default=0)),
                ("membership", models.JSONField(default=list)),
                ("hot_version", models.PositiveBigIntegerField(default=0)),
                ("hot", models.JSONField(default=list)),
                ("counted", models.JSONField(default=dict)),
                ("hot_at", models.DateTimeField(blank=True, null=True)),
                (
                    "variant",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, related_name="routed", to="serving.variant"
                    ),
                ),
            ],
            options={
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="RoutingPolicy",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=controlplane.ids.new_id, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("version", models.PositiveIntegerField()),
                ("strategy", models.CharField(max_length=40)),
                ("document", models.JSONField(help_text="as the managed API has it, and RoutingExtensions")),
                ("notes", models.JSONField(default=list, help_text="what was mapped from another spelling")),
                ("set_by", models.CharField(max_length=150)),
                (
                    "variant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="routing_policies",
                        to="serving.variant",
                    ),
                ),
            ],
            options={
                "ordering": ["-version"],
                "constraints": [models.UniqueConstraint(fields=("variant", "version"), name="routing_policy_version")],
            },
        ),
        migrations.CreateModel(
            name="RoutingWindow",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("seconds", models.PositiveIntegerField()),
                ("at", models.DateTimeField()),
                ("figures", models.JSONField(default=dict)),
                (
                    "variant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="routing_windows",
                        to="serving.variant",
                    ),
                ),
            ],
            options={
                "ordering": ["at"],
                "indexes": [models.Index(fields=["seconds", "at"], name="routing_window_age")],
                "constraints": [models.UniqueConstraint(fields=("variant", "seconds", "at"), name="routing_window")],
            },
        ),
    ]
