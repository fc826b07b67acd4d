"""Shares of variants, and whose instances serve them."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("routing", "0002_intake")]

    operations = [
        migrations.AddField("routedvariant", "weight", models.FloatField(default=1.0)),
        migrations.AddField("routedvariant", "wanted_weight", models.FloatField(blank=True, null=True)),
        migrations.AddField("routedvariant", "source", models.UUIDField(blank=True, null=True)),
    ]
