from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("caches", "0019_pull_secrets")]

    operations = [
        migrations.AddField(
            model_name="rollout",
            name="pods_number",
            field=models.PositiveIntegerField(help_text="of an earlier one, whose pods it goes on with", null=True),
        ),
    ]
