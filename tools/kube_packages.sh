#!/bin/sh
# Make sure that Kubernetes nodes can run here: Linux, root, containerd, runc, and what builds and serves their images.
set -eu

fail() {
    echo "hearth: $*" >&2
    exit 1
}

[ "$(uname)" = Linux ] ||
    fail "Kubernetes nodes need Linux, and this is $(uname). Use 'make run', whose nodes are folders, or a Linux machine."
[ "$(id -u)" = 0 ] ||
    fail "Kubernetes nodes need root: they mount, they make networks and control groups." \
        "Run 'sudo make run-kube' in a clone of its own (what root writes there would be in your way in this one)," \
        "or 'make run', whose nodes are folders."

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
if command -v dpkg-query >/dev/null; then
    dpkg-query --show --showformat='${db:Status-Status}' busybox-static 2>/dev/null | grep -q '^installed$' ||
        missing="$missing busybox-static"
else
    need /bin/busybox busybox
fi
[ -n "$missing" ] || exit 0

command -v apt-get >/dev/null ||
    fail "Kubernetes nodes need these programs:$missing. Install them (the names are Debian's), then run make again."
echo "hearth: installing$missing for Kubernetes nodes"
# shellcheck disable=SC2086 # a list of names
{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing; } \
    >/dev/null || fail "These packages could not be installed:$missing. Install them, then run make again."
