"""Where an instance answers."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("serving", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="instance",
            name="address",
            field=models.CharField(blank=True, default="", max_length=300),
        ),
    ]
