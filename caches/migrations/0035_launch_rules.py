"""Which rule the phases of a launch follow: those of before are made again by the rounds, the latest first."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("caches", "0034_launch_trials_counts")]

    operations = [
        migrations.AddField(
            model_name="launch",
            name="rule",
            field=models.PositiveSmallIntegerField(db_default=1, default=2, help_text="which one the phases follow"),
        )
    ]
