#!/bin/sh
# Make sure that Kubernetes nodes can run here: containerd, runc, and what builds and serves their images.
set -eu
missing=""
need() { # need COMMAND-OR-PATH PACKAGE
    command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "$1" ] || missing="$missing $2"
}
need containerd containerd
need runc runc
need buildah buildah
need docker-registry docker-registry
need /usr/lib/cni/bridge containernetworking-plugins
need ip iproute2
# The static one: it is put into images without any library.
dpkg-query --show --showformat='${db:Status-Status}' busybox-static 2>/dev/null | grep -q '^installed$' ||
    missing="$missing busybox-static"
[ -n "$missing" ] || exit 0

if [ "$(uname)" = Linux ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "hearth: installing$missing for Kubernetes nodes"
    # shellcheck disable=SC2086 # a list of names
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing; } \
        >/dev/null && exit 0
fi
echo "hearth: Kubernetes nodes need Linux, root and these packages:$missing." \
    "Install them: sudo apt-get install$missing" >&2
exit 1
