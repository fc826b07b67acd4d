from django.db import migrations, models


class Migration(migrations.Migration):
    """Processes of the previous version write no findings: the column may be null."""

    dependencies = [("caches", "0003_entry_labels")]

    operations = [
        migrations.AddField(model_name="cacheentry", name="scrub", field=models.JSONField(null=True)),
    ]
