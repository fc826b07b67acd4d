#!/bin/sh
# Create .venv with the installer in it. Usage: tools/bootstrap.sh [python]
#
# Needs nothing but a Python; on Debian and Ubuntu the venv module is a package of its own, which is
# installed here when we may, and named in a sentence when we may not.
set -eu

fail() {
    echo "hearth: $*" >&2
    exit 1
}

suits() { # a Python that runs and that every wheel exists for
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' >/dev/null 2>&1
}

find_python() {
    for candidate in ${1:-} python3 python3.13 python3.12 python3.11 python3.14; do
        if suits "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "no Python from 3.11 to 3.14 was found. Install one (Debian, Ubuntu: apt-get install python3 python3-venv)" \
        "or name it: make PYTHON=/path/to/python3.12"
}

[ -z "${1:-}" ] || suits "$1" || fail "$1 is no Python from 3.11 to 3.14. Name another one: make PYTHON=/path/to/python3.12"
python="$(find_python "${1:-}")" || exit 1

if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
    package="python$version-venv"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "hearth: installing $package"
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package"; } >/dev/null ||
            fail "$package could not be installed. Install it, then run make again."
    else
        fail "$python has no venv module. Install it (sudo apt-get install $package), then run make again."
    fi
fi

[ -x .venv/bin/python ] && suits .venv/bin/python || "$python" -m venv --clear .venv

# Not into site-packages: syncing those to a lock file would remove the installer that does it.
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --require-hashes \
    --target .venv/bootstrap --requirement requirements/bootstrap.txt

# So that Hearth's packages are found from wherever a program of this environment is started.
.venv/bin/python -c 'import pathlib, sysconfig
pathlib.Path(sysconfig.get_path("purelib"), "hearth.pth").write_text(str(pathlib.Path.cwd()) + "\n")'
