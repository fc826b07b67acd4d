"""What is counted for 0032: each statement on its own, so that nobody waits for both; a repeat changes nothing.

Hours whose launches are all still there (as long as services.launches.assembly.KEPT) are counted again by the next
rounds. Older ones stay as they were counted, nobody could count them again: of no endpoint, and with what trials
provoked.
"""

from django.db import migrations

PLACES = """
    INSERT INTO caches_launchcount
           (cluster_id, step, by, start, trial, pool_name, endpoint_name, version_name, digest, event_class, weights,
            image, launches, ready, ended, reasons, sketch)
    SELECT cluster_id, step, 'Place', start, false, pool_name, '', version_name, '', event_class, weights, image,
           launches, ready, ended, reasons, sketch
      FROM caches_launchcount WHERE by = 'Names'
    ON CONFLICT DO NOTHING
"""
COUNT_AGAIN = """
    INSERT INTO caches_launchhour (cluster_id, step, start, dirty_at)
    SELECT cluster_id, 'Hour', start, now()
      FROM (SELECT DISTINCT cluster_id, date_trunc('hour', began_at, 'UTC') AS start
              FROM caches_launch WHERE began_at > now() - interval '90 days') AS there
    ON CONFLICT DO NOTHING
"""


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("caches", "0033_launch_trials_indexes")]

    operations = [migrations.RunSQL([PLACES, COUNT_AGAIN], migrations.RunSQL.noop)]
