#!/bin/sh
# Write the secrets of docker-compose.yml to .run/compose. Keeps what exists; remove a file to renew it.
#
# The folder is closed to others, the files in it are not: containers read them as users this machine does not have.
set -eu
cd "$(dirname "$0")/.."
mkdir -p .run/compose
chmod 700 .run/compose
cd .run/compose

random() {
    od -An -N"$1" -tx1 /dev/urandom | tr -d ' \n'
}

once() { # name, then content on standard input
    if [ -e "$1" ]; then cat >/dev/null; else cat >"$1"; fi
    chmod 444 "$1"
}

random 24 | once database_password
random 32 | once secret_key
printf 'postgres://hearth:%s@db:5432/hearth' "$(cat database_password)" | once database_url
printf 'redis://:%s@valkey:6379/0' "$(random 24)" | once redis_url
password="$(sed 's|^redis://:||; s|@.*||' redis_url)"
printf 'bind 0.0.0.0\nrequirepass %s\nsave ""\nappendonly no\nmaxmemory 256mb\nmaxmemory-policy noeviction\n' "$password" |
    once valkey_conf
