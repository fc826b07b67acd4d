#!/bin/sh
# Checks that need Django loaded, without a database: forgotten migrations and a stale openapi.yaml.
set -eu
[ -f controlplane/settings.py ] || exit 0
python=.venv/bin/python

export DATABASE_URL="${DATABASE_URL:-postgres://none:none@127.0.0.1:9/none}"
export REDIS_URL="${REDIS_URL:-redis://127.0.0.1:9/0}"
export SECRET_KEY="${SECRET_KEY:-only-for-checks}"
# makemigrations asks the database for its history and goes on without an answer: a pool would wait for one.
export HEARTH_DATABASE_POOL=0

$python -W ignore manage.py makemigrations --check --dry-run --verbosity 1 || {
    echo "hearth: models and migrations differ. Run: .venv/bin/python manage.py makemigrations" >&2
    exit 1
}

[ -f openapi.yaml ] || exit 0
fresh="$(mktemp)"
trap 'rm -f "$fresh"' EXIT
$python manage.py spectacular --validate --fail-on-warn --file "$fresh"
diff -u openapi.yaml "$fresh" || {
    echo "hearth: openapi.yaml is stale. Run: .venv/bin/python manage.py spectacular --file openapi.yaml" >&2
    exit 1
}
