#!/bin/sh
# Recompile requirements/*.txt from pyproject.toml. Usage: tools/lock.sh path/to/uv [options of uv pip compile]
#
# The files hold versions and hashes only: where packages come from is the machine's business.
# Everything is resolved together first, so that the files agree on every version.
set -eu
uv="$1"
shift
export UV_CUSTOM_COMPILE_COMMAND="make lock" UV_PYTHON_DOWNLOADS=never

compile() {
    out="$1"
    shift
    "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --no-emit-index-annotation --output-file "$out" "$@"
}

compile requirements/dev.txt pyproject.toml --extra embedded --extra kube --extra dev "$@"
compile requirements/embedded.txt pyproject.toml --extra embedded --constraints requirements/dev.txt "$@"
compile requirements/kube.txt pyproject.toml --extra embedded --extra kube --constraints requirements/dev.txt "$@"
compile requirements/base.txt pyproject.toml --constraints requirements/dev.txt "$@"
compile requirements/bootstrap.txt requirements/bootstrap.in "$@"
