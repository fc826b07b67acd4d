from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("clusters", "0002_node_ends")]

    operations = [
        migrations.AddField(
            model_name="nodepool",
            name="deleting_at",
            field=models.DateTimeField(blank=True, help_text="it takes no pins, and its nodes are emptied", null=True),
        ),
    ]
