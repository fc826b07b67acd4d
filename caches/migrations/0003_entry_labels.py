from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("caches", "0002_connection_rate")]

    operations = [
        migrations.AddField(
            model_name="cacheentry",
            name="labeled_at",
            field=models.DateTimeField(help_text="when Hearth set the node's ready-label for it", null=True),
        ),
        migrations.AddField(
            model_name="cacheentry",
            name="unlabeled_at",
            field=models.DateTimeField(help_text="since when that label is away for an eviction", null=True),
        ),
    ]
