import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("caches", "0023_launch_watches"), ("serving", "0001_initial")]

    operations = [
        migrations.AlterField(
            model_name="pin",
            name="version",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="pins",
                to="caches.modelversion",
            ),
        ),
        migrations.AddConstraint(
            model_name="pin",
            constraint=models.UniqueConstraint(
                condition=models.Q(("removed_at__isnull", True), ("version__isnull", True)),
                fields=("image", "endpoint"),
                name="caches_one_live_pin_per_endpoint_image_alone",
            ),
        ),
        migrations.AddConstraint(
            model_name="pin",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("version__isnull", False),
                    models.Q(("endpoint__isnull", False), ("image__isnull", False)),
                    _connector="OR",
                ),
                name="caches_pin_of_something",
            ),
        ),
    ]
