from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("clusters", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="node",
            name="taints",
            field=models.JSONField(default=list),
        ),
        migrations.AddField(
            model_name="node",
            name="terminating_at",
            field=models.DateTimeField(blank=True, help_text="announced end, e.g. a spot interruption", null=True),
        ),
        migrations.AddField(
            model_name="nodepool",
            name="startup_taint",
            field=models.BooleanField(
                default=False,
                help_text="remove the taint hearth.dev/cold from a node once what is pinned there is warm",
            ),
        ),
    ]
