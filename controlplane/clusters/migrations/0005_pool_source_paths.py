from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("clusters", "0004_cluster_uid")]

    operations = [
        migrations.AddField(
            model_name="nodepool",
            name="source_paths",
            field=models.JSONField(
                default=list,
                help_text="folders of its nodes that Filesystem connections may read there, such as a shared mount",
            ),
        ),
    ]
