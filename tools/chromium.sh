#!/bin/sh
# Make sure that the browser tests find a Chromium; the system's package is used, never a downloaded build.
set -eu
for name in "${HEARTH_CHROMIUM:-}" chromium chromium-browser google-chrome; do
    [ -n "$name" ] && command -v "$name" >/dev/null && exit 0
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "hearth: installing chromium for the browser tests"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium; } >/dev/null && exit 0
fi
echo "hearth: the browser tests need Chromium. Install it (sudo apt-get install chromium)" \
    "or name one: HEARTH_CHROMIUM=/path/to/chrome make test" >&2
exit 1
