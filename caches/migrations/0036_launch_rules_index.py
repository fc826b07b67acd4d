"""The index of 0035, made while launches are written and read. What a run that was killed left is made anew."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("caches", "0035_launch_rules")]

    operations = [
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS caches_launch_rule", migrations.RunSQL.noop),
        AddIndexConcurrently(
            "launch",
            models.Index(condition=models.Q(("rule__lt", 2)), fields=["began_at"], name="caches_launch_rule"),
        ),
    ]
