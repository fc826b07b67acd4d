"""Which artifacts engines of the local fleet can serve, read from their manifests. Nothing is locked meanwhile."""

import json
import zlib

from django.db import migrations


def read(apps, schema_editor):
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
        ("caches", "0030_artifact_servable"),
    ]

    operations = [migrations.RunPython(read, migrations.RunPython.noop, elidable=True)]
