"""Addresses that a person gives may speak TLS."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("serving", "0003_instance_warm_up")]

    operations = [migrations.AddField(model_name="instance", name="tls", field=models.BooleanField(default=False))]
