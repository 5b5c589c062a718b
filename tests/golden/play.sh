#!/usr/bin/env bash
# Writes golden data: CHANCERY DIRECTORY. See README.md.
#
# Run it from the root of the repository, with the program of the build whose data are kept. The directory gets the
# journal, the snapshots and the rows.
set -euo pipefail

chancery="$(realpath "$1")"
golden="$2"
data="$(mktemp -d --tmpdir chancery-golden.XXXXXX)"
bin="$(mktemp -d --tmpdir chancery-golden.XXXXXX)"
ln -s "$chancery" "$bin/chancery" # payloads find the program on their PATH
printf 'segment_bytes = "64KiB"\n' >"$bin/chancery.toml" # several segments
export PATH="$bin:$PATH" CHANCERY_ACTOR=ann CHANCERY_SNAPSHOT_INTERVAL_EVENTS=300

server=
start() {
  rm -f "$data/address"
  chancery serve --config "$bin/chancery.toml" --data-dir "$data" --listen 127.0.0.1:0 "$@" 2>>"$data/log" &
  server=$!
  until [ -s "$data/address" ]; do sleep 0.05; done
  CHANCERY_SERVER="http://$(cat "$data/address")"
  export CHANCERY_SERVER
  until curl -fs "$CHANCERY_SERVER/readyz" >/dev/null; do sleep 0.05; done
}
stop() { kill "$server"; wait "$server" || true; }
trap stop EXIT

deployment() { # PLAN NAME COUNT [SPEC]
  printf 'apiVersion: chancery/v1\nkind: Deployment\nmetadata: {name: %s}\nspec: {plan: %s, count: %s%s}\n' "$2" "$1" "$3" "${4:+, $4}" |
    chancery apply -f -
}
completed() { chancery wait "deployment/$1/$2" --for state=completed; }
# PLAN NAME: approves the deployment's operations, step by step.
approved() {
  until chancery wait "deployment/$1/$2" --for state=completed --timeout 500ms; do
    chancery approve --plan "$1" --all --actor bob || true
  done
}
# COMMAND...: runs a command that waits for approval or is refused.
waits() { "$@" && status=0 || status=$?; [ "$status" = 0 ] || [ "$status" = 6 ]; }
refused() { ! "$@"; }

start --embedded-executors all

# The walk-through of the README, with real processes.
chancery apply -f examples/nodes.yaml -f examples/web-plan.yaml
for step in 1:create:1 2:create:2 3:update:3 4:delete:2; do
  IFS=: read -r number kind count <<<"$step"
  chancery apply -f "examples/deployment-$number.yaml"
  chancery wait plan/web --for "operations.$kind.pending_approval=$count"
  chancery approve --plan web --all --actor bob
  completed web "deployment-$number"
done
web="$(chancery get replicas -l plan=web -o name | head -1)"
web="${web#*/}"
chancery restart "$web"
chancery reject --replica "$web" --all --actor bob --reason "not today"
chancery apply -f examples/policies.yaml

# Volumes that change owners, one that is deleted, and a node that is lost with its objects.
chancery apply -f examples/notes/1-notes.yaml
completed notes notes-1
chancery apply -f examples/notes/2-archive.yaml
completed archive archive-1
deployment archive archive-2 0
completed archive archive-2
volume="$(chancery get volumes -o name | head -1)"
waits chancery delete "$volume"
for id in $(chancery get requests -l state=pending -o name); do chancery approve "$id" --actor bob; done

# Simulated nodes: capabilities, a canary, a deployment that is paused, cancelled, superseded and rolled back.
chancery apply -f examples/nginx/capabilities.yaml -f tests/golden/entities.yaml
chancery deactivate cluster/spare
chancery activate cluster/spare
chancery delete cluster spare
chancery deactivate capability/nvidia-a100
chancery activate capability/nvidia-a100
chancery delete capability nvidia-a100
deployment shop one 3 'coordinates: {shop: {version: v1}}'
completed shop one
deployment shop two 3 'coordinates: {shop: {version: v2}}, strategy: {canary: {count: 1}}'
chancery wait plan/shop --for operations.create.succeeded=4
chancery promote deployment/shop/two
approved shop two
deployment shop three 4 'coordinates: {shop: {version: v3}}, strategy: {canary: {count: 1}}'
chancery pause deployment/shop/three
chancery resume deployment/shop/three
chancery rollback deployment/shop/three
chancery rollback shop --to one --name back
approved shop back
deployment shop four 5 'strategy: {blue_green: {timeout: 5m}}, coordinates: {shop: {version: v4}}'
chancery cancel deployment/shop/four
deployment gpu one 1
completed gpu one
deployment kept one 1
completed kept one
deployment huge one 1
chancery wait plan/huge --for operations.create.preparing=1
deployment huge two 0 'overlap: supersede'

# Single replicas.
chancery create replica --plan shop
chancery rebalance shop
shop="$(chancery get replicas -l plan=shop -o name | head -1)"
shop="${shop#*/}"
chancery stop "$shop"
chancery wait "replica/$shop" --for phase=stopped
chancery start "$shop"
chancery wait "replica/$shop" --for ready=true
chancery relocate "$shop"
chancery wait plan/shop --for operations.relocate.succeeded=1
chancery restart "$shop"
chancery wait plan/shop --for operations.restart.succeeded=1

chancery delete replica "$shop"
chancery approve --replica "$shop" --all --actor bob
chancery wait "replica/$shop" --for deleted

# Nodes: drained and undrained, disrupted, moved through their states, and lost.
chancery drain sim-1 --reason disk --wait
chancery undrain sim-1
chancery schedule disruption sim-2/kernel --drain --reason kernel
waits chancery approve disruption sim-2/kernel --actor bob
for id in $(chancery get requests -l state=pending -o name); do chancery approve "$id" --actor carl; done
chancery complete disruption sim-2/kernel
chancery delete disruption sim-2/kernel
chancery schedule disruption sim-2/later --start 720h --reason later
chancery drain sim-3 --wait
chancery evict sim-3
chancery sanitize sim-3
chancery release sim-3
chancery allocate sim-3 --cluster sim
waits chancery expunge sim-3 --yes
refused chancery delete node sim-1
chancery expunge sim-2 --yes --break-glass "fire in row 3"
waits chancery delete policy two-for-web
chancery delete policy quiet-hours
waits chancery delete plan shop --cascade
chancery delete plan huge
chancery delete node store-1 --cascade
chancery deactivate plan/gpu

# The end: real processes are ended, and executors leave.
id="$(chancery get requests -l state=pending -o name | head -1)"
chancery reject "$id" --actor bob --reason no
deployment web none 0
approved web none
stop
start --embedded-executors none
sleep 2

mkdir -p "$golden/rows"
for kind in clusters capabilities nodes plans deployments replicas incarnations operations sessions volumes policies requests commands; do
  curl -fsS "$CHANCERY_SERVER/v1/fleets/default/$kind?limit=1000" >"$golden/rows/$kind.json"
done
stop
trap - EXIT
chancery verify "$data/fleets/default/journal" | tail -n +2 >"$golden/verify.txt"
tar -C "$data/fleets/default" --exclude lock --exclude spare -czf "$golden/fleet.tar.gz" journal snapshots
rm -rf "$data" "$bin"
