#!/bin/sh
# Warm a model from a pipeline: register, dry run, pin, wait, and end with 0, 1 or 2.
#
#   export HEARTH_URL=https://hearth.example HEARTH_TOKEN=...      (scopes read, models:write, pins:write)
#   warm.sh --model llama --version v3 --connection store --uri s3://models/llama/v3 --pool prod.gpu
#
#   --pool CLUSTER.POOL       may be repeated
#   --allow PATTERN, --ignore PATTERN   which files of the source count; may be repeated
#   --priority 0-1000         500 by default
#   --keep "MODEL VERSION"    stop when the dry run would evict it; may be repeated
#   --timeout SECONDS         for everything together, 3600 by default
#
# Exit 0: warm. 1: refused or failed; the last line names the code and the next step. 2: time is up, work goes on.
# Safe to repeat: each step has an Idempotency-Key (set HEARTH_RUN_ID to keep it over a restarted job), the same
# content registers once, and a version that is pinned already on every --pool is only waited for. A pin that lacks a
# pool is refused: adding pools to a pin is for people to decide.
# Needs curl, and jq or python3.
set -eu

fail() { # CODE DETAIL NEXT_STEP
    printf 'warm: %s\n' "$2" >&2
    printf 'warm: failed: code=%s next_step=%s\n' "$1" "$3" >&2
    exit 1
}

say() { printf 'warm: %s\n' "$*" >&2; }

model='' version='' connection='' uri='' priority=500 timeout=3600 keep=''
set_source() { sources="$sources
$1"; }
sources='' pools=''
while [ $# -gt 0 ]; do
    [ $# -ge 2 ] || fail pipeline:user:usage "$1 needs a value." "Read the head of this script."
    case $1 in
    --model) model=$2 ;;
    --version) version=$2 ;;
    --connection) connection=$2 ;;
    --uri) uri=$2 ;;
    --priority) priority=$2 ;;
    --timeout) timeout=$2 ;;
    --pool) pools="$pools
pools[]=$2" ;;
    --allow) set_source "source.allow_patterns[]=$2" ;;
    --ignore) set_source "source.ignore_patterns[]=$2" ;;
    --keep) keep="$keep
$2" ;;
    *) fail pipeline:user:usage "There is no option $1." "Read the head of this script." ;;
    esac
    shift 2
done
for needed in model version connection uri pools HEARTH_URL HEARTH_TOKEN; do
    eval "value=\${$needed:-}"
    [ -n "$value" ] || fail pipeline:user:usage "$needed is not set." "Read the head of this script."
done
case $HEARTH_TOKEN in
*[!A-Za-z0-9_.-]*) fail token:user:malformed "HEARTH_TOKEN has characters that no token has." "Copy it again." ;;
esac

api=${HEARTH_URL%/}/api/v1
run=${HEARTH_RUN_ID:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}
deadline=$(($(date +%s) + timeout))
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

left() { echo $((deadline - $(date +%s))); }

# One field of the last answer by its dotted path; lists know .length. Nothing for null or absent.
if command -v jq >/dev/null; then
    field() {
        jq -r --arg path "$1" 'reduce ($path | split("."))[] as $key (.;
            if $key == "length" then length elif type == "array" then .[$key | tonumber]
            elif type == "object" then .[$key] else null end) | if . == null then "" else . end' "$work/body"
    }
    # A body from NAME=VALUE, where NAME is a dotted path, ends in [] for a list item and in # for a number.
    body() {
        jq -nc '$ARGS.positional | reduce .[] as $pair ({}; ($pair | index("=")) as $at
            | $pair[:$at] as $name | $pair[$at + 1:] as $value | ($name | rtrimstr("[]") | rtrimstr("#") | split("."))
            as $path | if ($name | endswith("[]")) then setpath($path; (getpath($path) // []) + [$value])
            elif ($name | endswith("#")) then setpath($path; $value | tonumber)
            else setpath($path; $value) end)' --args "$@"
    }
    # A value as one part of an address.
    escaped() { jq -rn --arg value "$1" '$value | @uri'; }
elif command -v python3 >/dev/null; then
    escaped() { python3 -c 'import sys, urllib.parse; print(urllib.parse.quote(sys.argv[1], safe=""))' "$1"; }
    field() {
        python3 -c 'import json, sys
value = json.load(open(sys.argv[2], encoding="utf-8"))
for key in sys.argv[1].split("."):
    if key == "length":
        value = len(value or ())
    elif isinstance(value, list):
        value = value[int(key)] if int(key) < len(value) else None
    else:
        value = value.get(key) if isinstance(value, dict) else None
print("" if value is None else value)' "$1" "$work/body"
    }
    body() {
        python3 -c 'import json, sys
made = {}
for pair in sys.argv[1:]:
    name, value = pair.split("=", 1)
    *outer, last = name.removesuffix("[]").removesuffix("#").split(".")
    place = made
    for key in outer:
        place = place.setdefault(key, {})
    if name.endswith("[]"):
        place.setdefault(last, []).append(value)
    else:
        place[last] = int(value) if name.endswith("#") else value
print(json.dumps(made))' "$@"
    }
else
    fail pipeline:user:tools "Neither jq nor python3 is installed." "Install jq."
fi

# METHOD PATH [KEY]: sets $status, leaves the answer in body; the token travels on curl's standard input, never in
# its arguments. Repeats what a proxy, a restart or a twin lost; the Idempotency-Key makes that harmless.
call() {
    while :; do
        [ "$(left)" -gt 0 ] || out_of_time
        : >"$work/headers"
        set -- "$1" "$2" "${3:-}"
        broken=0
        seconds=$(($(left) + 10))
        [ "$seconds" -lt 120 ] || seconds=120
        status=$({
            printf 'header = "Authorization: Bearer %s"\n' "$HEARTH_TOKEN"
            printf 'header = "Accept: application/json"\n'
            if [ "$1" = POST ]; then
                printf 'header = "Content-Type: application/json"\nheader = "Idempotency-Key: %s-%s"\n' "$run" "$3"
                printf 'data-binary = "@%s"\n' "$work/request"
            fi
        } | curl -sS -K - -X "$1" --globoff --path-as-is --connect-timeout 10 --max-time "$seconds" -o "$work/body" -D "$work/headers" -w '%{http_code}' "$api/$2") ||
            broken=$? status=000
        case $broken in
        1 | 2 | 3 | 4 | 60 | 77) # no scheme, no such option, no URL, no certificate: the same next time
            fail pipeline:user:address "curl cannot call $api/$2 (its error $broken)." "Correct HEARTH_URL."
            ;;
        esac
        case $status in
        000) last="curl error $broken" ;;
        429 | 502 | 503 | 504) last="status $status" ;;
        409)
            answered=yes
            [ "$(field code)" = idempotency:key:running ] || return 0
            last="a twin of this call still runs"
            ;;
        *)
            answered=yes
            return 0
            ;;
        esac
        say "$1 $2: $last, trying again"
        sleep "$(sed -n 's/^[Rr]etry-[Aa]fter: *\([0-9]\{1,2\}\).*/\1/p' "$work/headers" | head -n 1 | grep . || echo 2)"
    done
}

problem() { fail "$(field code)" "$(field detail)" "$(field next_step)"; }

out_of_time() {
    [ -n "$answered" ] || fail pipeline:hearth:unreachable \
        "Hearth did not answer once in $timeout s at $api (${last:-no time was left})." "Check HEARTH_URL and the network."
    say "time is up after $timeout s; the work goes on${operation:+, follow $api/operations/$operation}${pin:+, see $api/pins/$pin}"
    exit 2
}

patience() { # how long one request may be held
    seconds=$(left)
    [ "$seconds" -lt 60 ] || seconds=60
    [ "$seconds" -gt 0 ] || seconds=0
    echo "$seconds"
}

follow() { # the operation in body, until it has ended
    operation=$(field id)
    while :; do
        case $(field state) in
        Succeeded)
            operation=''
            return 0
            ;;
        Failed) fail "$(field error.code)" "$(field error.detail)" "$(field error.next_step)" ;;
        Canceled) fail operation:user:canceled "Somebody cancelled operation $operation." "Ask who, and run again." ;;
        esac
        [ "$(left)" -gt 0 ] || out_of_time
        say "$(field kind) $(field subject.name): $(field state)," \
            "$(field progress.bytes_done) of $(field progress.bytes_total) bytes"
        asked=$(date +%s)
        call GET "operations/$operation?wait=$(patience)"
        [ "$status" = 200 ] || [ "$status" = 202 ] || problem
        # The server answers at once while all its waiting places are taken.
        [ "$(date +%s)" -gt "$asked" ] || [ "$status" = 200 ] || sleep 2
    done
}

condition() { # TYPE: sets $is, $reason and $message of the pin in body
    is='' reason='' message='' index=$(field status.conditions.length)
    while [ "$index" -gt 0 ]; do
        index=$((index - 1))
        [ "$(field "status.conditions.$index.type")" = "$1" ] || continue
        is=$(field "status.conditions.$index.status")
        reason=$(field "status.conditions.$index.reason")
        message=$(field "status.conditions.$index.message")
    done
}

required_nodes() { # how many nodes the gate of the pin in body wants
    case $(field gate.type) in
    Count) field gate.value ;;
    Percent) echo $((($(field status.target) * $(field gate.value) + 99) / 100)) ;;
    *) field status.target ;;
    esac
}

covers() { # stops when the pin in body lacks one of the pools
    missing='' index=$(field items.0.pools.length) has=''
    while [ "$index" -gt 0 ]; do
        index=$((index - 1))
        has="$has $(field "items.0.pools.$index") "
    done
    IFS='
'
    for wanted in $pools; do
        wanted=${wanted#*=}
        case $has in *" $wanted "*) ;; *) missing="$missing${missing:+, }$wanted" ;; esac
    done
    IFS=$old_ifs
    [ -z "$missing" ] || fail pin:user:other-pools "$model $version is pinned, but not on $missing." \
        "Let somebody decide whether the pin $pin gets the pools $missing (PATCH /api/v1/pins/$pin), or leave them out."
}

hopeless() { # stops when the gate of the pin in body cannot open: too few nodes are left that may still become ready
    condition Admitted
    refused=0
    [ "$is" != False ] || refused=1
    [ "$refused" = 0 ] || [ "$(field gate.type)" = Timeout ] ||
        [ $((target - refused)) -ge "$required" ] || fail "pin:user:$reason" "$message" "Free room, or add nodes."
    [ "$failed" -gt 0 ] && [ "$(field gate.type)" != Timeout ] && [ $((target - failed)) -lt "$required" ] || return 0
    digest=$(field digest)
    # A failure that is tried again by itself has retry_at; only the others are final.
    call GET "cache-entries?state=Failed&digest=$(escaped "$digest")&page_size=100"
    [ "$status" = 200 ] || problem
    final=0 index=$(field items.length)
    while [ "$index" -gt 0 ]; do
        index=$((index - 1))
        [ -z "$(field "items.$index.retry_at")" ] || continue
        final=$((final + 1))
        message="$(field "items.$index.node"): $(field "items.$index.reason") $(field "items.$index.message")"
    done
    [ $((target - final)) -ge "$required" ] ||
        fail pin:node:failed "$final of $target nodes failed, for example $message" "Read the entries of the pin $pin."
}

follow_pin() { # the pin's own status: its last operation may have ended before nodes or pools were added
    began=$(date +%s)
    while :; do
        call GET "pins/$pin"
        [ "$status" = 200 ] || problem
        target=$(field status.target) ready=$(field status.ready) failed=$(field status.failed)
        required=$(required_nodes)
        condition Warm
        [ "$is" != True ] || return 0
        [ "$target" = 0 ] || [ "$ready" -lt "$required" ] || return 0
        if [ "$(field gate.type)" = Timeout ] && [ "$target" -gt 0 ]; then
            [ $(($(date +%s) - began)) -lt "$(field gate.value)" ] || return 0
        fi
        [ "$(field suspended | tr TF tf)" != true ] ||
            fail pin:user:suspended "The pin $pin is suspended: nothing is fetched." "Resume it."
        say "pin: $message"
        [ "$target" = 0 ] || hopeless
        [ "$(left)" -gt 0 ] || out_of_time
        sleep 2
    done
}

operation='' pin='' answered='' last=''
old_ifs=$IFS
IFS='
'
# Word splitting at newlines alone is what turns the two lists into arguments; patterns must not become file names.
set -f
# shellcheck disable=SC2086
body "version=$version" "source.connection=$connection" "source.uri=$uri" $sources >"$work/request"
IFS=$old_ifs
call POST "models/$(escaped "$model")/versions?wait=$(patience)" register
case $status in 200 | 202) follow ;; *) problem ;; esac
say "registered $model $version"

IFS='
'
# shellcheck disable=SC2086
body "model=$model" "version=$version" "priority#=$priority" $pools >"$work/request"
IFS=$old_ifs
call POST 'pins?dry_run=true' plan
[ "$status" = 200 ] || problem
if [ "$(field refusals.length)" -gt 0 ]; then
    full="$(field refusals.length) nodes have no room, for example"
    [ "$(field refusals.length)" -gt 1 ] || full='1 node has no room,'
    say "$full $(field refusals.0.node):" \
        "needs $(field refusals.0.need_bytes), free $(field refusals.0.free_bytes)," \
        "reserved $(field refusals.0.reserved_bytes) bytes"
    fail pin:user:insufficient-capacity "$(field refusals.0.detail)" "$(field refusals.0.next_step)"
fi
index=$(field evictions.length)
while [ "$index" -gt 0 ]; do
    index=$((index - 1))
    artifact=$(field "evictions.$index.artifact")
    say "evicts $artifact from $(field "evictions.$index.node")"
    case "$keep
" in *"
$artifact
"*) fail pin:user:would-evict "The pin would evict $artifact." "Free room, or take it off --keep." ;; esac
done
say "moves $(field total_bytes) bytes"

call POST "pins?wait=$(patience)" pin
if [ "$status" = 409 ] && [ "$(field code)" = pin:user:exists ]; then
    say "already pinned: waiting for that pin"
    call GET "pins?model=$(escaped "$model")&version=$(escaped "$version")"
    [ "$status" = 200 ] || problem
    pin=$(field items.0.id)
    [ -n "$pin" ] || fail pin:user:exists "The version is pinned where this token cannot see it." "Use another token."
    covers
    follow_pin
else
    case $status in 200 | 202) follow ;; *) problem ;; esac
fi
say "warm: $model $version"
