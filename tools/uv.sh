#!/bin/sh
# Run the installer in .venv, with what this machine has told pip about where packages come from.
set -eu

pip_setting() {
    .venv/bin/python -m pip config get "global.$1" 2>/dev/null || true
}

: "${UV_DEFAULT_INDEX:=${PIP_INDEX_URL:-$(pip_setting index-url)}}"
: "${SSL_CERT_FILE:=${PIP_CERT:-$(pip_setting cert)}}"
[ -z "$UV_DEFAULT_INDEX" ] || export UV_DEFAULT_INDEX
[ -z "$SSL_CERT_FILE" ] || export SSL_CERT_FILE
export UV_PYTHON_DOWNLOADS=never VIRTUAL_ENV="$PWD/.venv"

.venv/bootstrap/bin/uv "$@" && exit 0

free_kb="$(df -Pk . | awk 'NR == 2 { print $4 }')"
if [ "$free_kb" -lt 300000 ]; then
    echo "hearth: the disk under $PWD is nearly full; the environment needs about 1.5 GB. Free some space, then run make again." >&2
elif ! command -v cc >/dev/null; then
    echo "hearth: if a package had to be built, a C compiler is missing: apt-get install gcc libc6-dev, then run make again." >&2
fi
exit 1
