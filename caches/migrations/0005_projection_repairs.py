from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("caches", "0004_entry_scrub")]

    operations = [
        migrations.AddField(
            model_name="nodeprojection",
            name="document_hash",
            field=models.CharField(blank=True, default="", max_length=64),
        ),
        migrations.AddField(
            model_name="nodeprojection",
            name="foreign",
            field=models.BooleanField(default=False),
        ),
        migrations.AddField(
            model_name="nodeprojection",
            name="repaired_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="nodeprojection",
            name="repairs",
            field=models.PositiveIntegerField(default=0),
        ),
        migrations.AlterField(
            model_name="nodeprojection",
            name="spec_hash",
            field=models.CharField(blank=True, max_length=64),
        ),
    ]
