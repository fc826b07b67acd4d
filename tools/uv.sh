#!/bin/sh
# Run the installer in .venv, with what this machine has told pip about where packages come from.
set -eu

pip_setting() {
    .venv/bin/python -m pip config get "global.$1" 2>/dev/null || true
}

: "${UV_DEFAULT_INDEX:=${PIP_INDEX_URL:-$(pip_setting index-url)}}"
: "${SSL_CERT_FILE:=${PIP_CERT:-$(pip_setting cert)}}"
: "${UV_LINK_MODE:=copy}"
[ -z "$UV_DEFAULT_INDEX" ] || export UV_DEFAULT_INDEX
[ -z "$SSL_CERT_FILE" ] || export SSL_CERT_FILE
export UV_LINK_MODE UV_PYTHON_DOWNLOADS=never VIRTUAL_ENV="$PWD/.venv"

exec .venv/bootstrap/bin/uv "$@"
