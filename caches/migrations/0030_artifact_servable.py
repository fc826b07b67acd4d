"""Processes of the version before insert artifacts without the column: the database fills it in. Whether those few can
be served is read when somebody registers them again."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("caches", "0029_rollout_connections"),
    ]

    operations = [
        migrations.AddField(
            model_name="artifact",
            name="servable_locally",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="an engine of the local fleet can serve it, by the names of its files",
            ),
        ),
    ]
