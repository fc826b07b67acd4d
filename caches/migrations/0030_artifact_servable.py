import json
import zlib

from django.db import migrations, models


def _read(apps, schema_editor):
    """One GGUF file at the top of its folder is what an engine of the local fleet serves."""
    artifacts = apps.get_model("caches", "Artifact")
    fit = []
    for key, manifest in artifacts.objects.filter(kind="Weights").values_list("pk", "manifest").iterator(chunk_size=50):
        try:
            paths = [line[0] for line in json.loads(zlib.decompress(bytes(manifest)))["files"]]
        except (zlib.error, ValueError, KeyError, TypeError, IndexError):
            continue
        if sum(path.endswith(".gguf") and "/" not in path for path in paths) == 1:
            fit.append(key)
    artifacts.objects.filter(pk__in=fit).update(servable_locally=True)


class Migration(migrations.Migration):
    dependencies = [
        ("caches", "0029_rollout_connections"),
    ]

    operations = [
        migrations.AddField(
            model_name="artifact",
            name="servable_locally",
            field=models.BooleanField(
                default=False, help_text="an engine of the local fleet can serve it, by the names of its files"
            ),
        ),
        migrations.RunPython(_read, migrations.RunPython.noop, elidable=True),
    ]
