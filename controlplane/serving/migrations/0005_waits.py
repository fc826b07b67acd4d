"""Why pods wait, which are on their way out, and statuses that a cluster does not take."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("serving", "0004_instance_tls")]

    operations = [
        migrations.AddField(
            model_name="instance",
            name="wait_reason",
            field=models.CharField(blank=True, default="", max_length=24),
        ),
        migrations.AddField(
            model_name="instance",
            name="wait_message",
            field=models.CharField(blank=True, default="", max_length=500),
        ),
        migrations.AddField(model_name="instance", name="leaving", field=models.BooleanField(default=False)),
        migrations.AddField(model_name="endpoint", name="unwritten", field=models.JSONField(default=dict)),
    ]
