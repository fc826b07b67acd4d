from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("operations", "0001_initial")]

    operations = [
        migrations.AlterField(
            model_name="operation",
            name="kind",
            field=models.CharField(
                choices=[
                    ("ModelRegister", "Model Register"),
                    ("ModelRecheck", "Model Recheck"),
                    ("PinWarm", "Pin Warm"),
                    ("PinRemove", "Pin Remove"),
                    ("EntryEvict", "Entry Evict"),
                    ("EntryScrub", "Entry Scrub"),
                    ("PoolDelete", "Pool Delete"),
                ],
                max_length=32,
            ),
        ),
    ]
