from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("caches", "0025_launch_parts")]

    operations = [
        migrations.RemoveIndex(model_name="launch", name="caches_launch_lost"),
        migrations.AddIndex(
            model_name="launch",
            index=models.Index(
                condition=models.Q(
                    (
                        "end_reason__in",
                        ("NodeLost", "TaintManagerEviction", "DeletionByTaintManager", "DeletionByPodGC"),
                    )
                ),
                fields=["ended_at"],
                name="caches_launch_lost",
            ),
        ),
    ]
