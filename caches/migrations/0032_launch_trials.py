"""Counts of launches by endpoint and digest, and those of trials apart.

Workers of the version before cannot write counts any more, and that is meant: the new columns have no default in the
database, so that their COPY fails and their transaction with it. Marks of hours stay for the workers that come; those
of before would take them away and leave hours without the new grains. Pages of before go on reading what is there.
"""

from django.db import migrations, models

BY = ["Nothing", "Class", "Names", "Digest", "Pool", "Place", "Version", "Endpoint"]


class Migration(migrations.Migration):
    dependencies = [("caches", "0031_artifact_servable_read")]

    operations = [
        migrations.AddField("launchcount", "trial", models.BooleanField(default=False)),
        migrations.AddField("launchcount", "endpoint_name", models.CharField(blank=True, default="", max_length=320)),
        migrations.AddField("launchcount", "digest", models.CharField(blank=True, default="", max_length=80)),
        migrations.AlterField("launchcount", "by", models.CharField(choices=[(one, one) for one in BY], max_length=8)),
    ]
