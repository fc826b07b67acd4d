"""Why pods wait, which are on their way out, and statuses that a cluster does not take.

Processes of the version before insert rows without these columns: the database fills them in.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("serving", "0004_instance_tls")]

    operations = [
        migrations.AddField(
            model_name="instance",
            name="wait_reason",
            field=models.CharField(blank=True, db_default="", default="", max_length=24),
        ),
        migrations.AddField(
            model_name="instance",
            name="wait_message",
            field=models.CharField(blank=True, db_default="", default="", max_length=500),
        ),
        migrations.AddField(
            model_name="instance",
            name="leaving",
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddField(
            model_name="endpoint",
            name="unwritten",
            field=models.JSONField(db_default={}, default=dict),
        ),
    ]
