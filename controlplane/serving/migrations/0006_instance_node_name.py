"""Which node an instance is on, as its cluster says it: its node's row may come later, or never.

Processes of the version before insert rows without these columns: the database fills them in.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("serving", "0005_waits")]

    operations = [
        migrations.AddField(
            model_name="instance",
            name="node_name",
            field=models.CharField(blank=True, db_default="", default="", max_length=253),
        ),
        migrations.AddField(
            model_name="instance",
            name="node_uid",
            field=models.CharField(blank=True, db_default="", default="", max_length=64),
        ),
    ]
