from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("caches", "0009_hub_sources"),
    ]

    operations = [
        migrations.AddField(
            model_name="poolloop",
            name="not_before",
            field=models.DateTimeField(null=True),
        ),
    ]
