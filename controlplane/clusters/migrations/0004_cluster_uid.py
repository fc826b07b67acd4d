from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("clusters", "0003_pool_deleting")]

    operations = [
        migrations.AddField(
            model_name="cluster",
            name="uid",
            field=models.CharField(blank=True, default="", help_text="of what answered there last", max_length=64),
        ),
    ]
