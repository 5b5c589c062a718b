# shellcheck shell=bash
# A cluster in the directory $dir: node-ID/ has a node's settings, data, log and process id; `bootstrap` has the addresses
# for clients. One broker is its own controller. Three have a separate controller, node 100, so that the death of a broker
# is never that of the controller too.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# BROKERS: sets $brokers from the command line.
brokers_of() {
  brokers="${1:-}"
  [[ "$brokers" = [13] ]] || fail "how many brokers, 1 or 3? not '$brokers'"
}

# DIR: sets $dir to the directory of a new cluster.
folder_of() {
  mkdir -p "$1"
  dir="$(realpath "$1")"
  [ ! -e "$dir/node-1" ] || fail "there is a cluster already: tests/kafka/stop $dir"
}

# COUNT: prints free ports of the loopback. They are below the range that Linux assigns to clients, so that none is taken
# while its node is dead. Each process starts at its own port, with more ports after it than a cluster needs: clusters
# that start concurrently have neighboring pids.
free_ports() {
  local port=$((16000 + $$ * 16 % 16000)) free=()
  while [ "${#free[@]}" -lt "$1" ]; do
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
      free+=("$port")
    fi
    port=$((port + 1))
  done
  echo "${free[@]}"
}

# BROKERS ID CONTROLLER-PORT BROKER-PORT [PROXY-PORT INNER-PORT]: prints the settings of one node. Clients
# receive the proxy's port, if there is one; brokers then reach each other at the inner one.
settings() {
  local brokers="$1" id="$2" roles=broker listeners="PLAINTEXT://127.0.0.1:$4" controller=100 proxied=()
  local most=$(($1 / 2 + 1))
  if [ "$brokers" = 1 ]; then
    roles=broker,controller listeners+=",CONTROLLER://127.0.0.1:$3" controller=1
  elif [ "$id" = 100 ]; then
    roles=controller listeners="CONTROLLER://127.0.0.1:$3"
  fi
  if [ -n "${5:-}" ] && [ "$id" != 100 ]; then
    listeners+=",INNER://127.0.0.1:$6"
    proxied=('' '# Clients come through a proxy.' \
      "advertised.listeners=PLAINTEXT://127.0.0.1:$5,INNER://127.0.0.1:$6" inter.broker.listener.name=INNER)
    proxied+=("listener.security.protocol.map=PLAINTEXT:PLAINTEXT,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT")
  fi
  if [ -n "${secure_port:-}" ]; then
    listeners+=",SECURE://127.0.0.1:$secure_port"
    proxied=('' '# Clients may come by TLS and SCRAM.' sasl.enabled.mechanisms=SCRAM-SHA-512 \
      listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL \
      listener.name.secure.ssl.keystore.type=PKCS12 "listener.name.secure.ssl.keystore.location=$dir/broker.p12" \
      listener.name.secure.ssl.keystore.password=only-a-test \
      'listener.name.secure.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;')
  fi
  cat "$scripts/node.properties"
  printf '%s\n' '' '# This node.' "node.id=$id" "process.roles=$roles" "listeners=$listeners" \
    "controller.quorum.voters=$controller@127.0.0.1:$3" "log.dirs=$dir/node-$id/data" \
    '' '# What is acknowledged is on most of the brokers.' \
    "default.replication.factor=$brokers" "min.insync.replicas=$most" \
    "offsets.topic.replication.factor=$brokers" \
    "transaction.state.log.replication.factor=$brokers" "transaction.state.log.min.isr=$most" \
    "${proxied[@]}" '' "${CHANCERY_TEST_KAFKA_SETTINGS:-}"
}

# ID: whether a node runs or is paused. Another process may have its process id, and a dead process that is not reaped
# has no command line. Therefore the command line is checked.
alive() {
  local pid
  pid="$(cat "$dir/node-$1/pid" 2>/dev/null)" || return 1
  grep -qszF "$dir/node-$1/settings" "/proc/$pid/cmdline"
}

# SIGNAL ID
signal() {
  alive "$2" || fail "node $2 of $dir does not run"
  kill -s "$1" "$(cat "$dir/node-$2/pid")"
}

# PID: whether a process is dead, and at most not reaped by its parent. Its memory is released first, its sockets and locks
# only with its last thread.
dead() {
  local threads=("/proc/$1/task/"*)
  [ ! -d "/proc/$1" ] || { [ "${#threads[@]}" = 1 ] && grep -qs ') [XZ] ' "/proc/$1/stat"; }
}

# SIGNAL ID: sends the signal, and waits until the node is dead.
end() {
  local pid
  pid="$(cat "$dir/node-$2/pid")"
  signal "$1" "$2"
  until dead "$pid"; do sleep 0.02; done
}

# ID [OPTION OF THE JVM...]: starts a node, which outlives its terminal.
launch() {
  local node="$dir/node-$1"
  shift
  if [ -f "$node/log" ]; then
    mv "$node/log" "$node/log.before"
  fi
  (trap '' HUP; become_java "$@" kafka.Kafka "$node/settings") </dev/null >"$node/log" 2>&1 &
  echo $! >"$node/pid"
}

# ID: removes the data of a dead node, and gives it the empty storage of a new disk.
wipe() {
  local cluster
  cluster="$(sed -n 's/^cluster.id=//p' "$dir/node-$1/data/meta.properties")"
  rm -rf "$dir/node-$1/data"
  (become_java kafka.tools.StorageTool format --cluster-id "$cluster" --config "$dir/node-$1/settings") \
    >"$dir/node-$1/log.wipe" 2>&1 || { cat "$dir/node-$1/log.wipe" >&2; fail "cannot format storage of node $1"; }
}

# ID: waits until a node that this shell launched has started: a broker then answers clients.
ready() {
  local pid log="$dir/node-$1/log"
  pid="$(cat "$dir/node-$1/pid")"
  for _ in {1..1200}; do
    if grep -qs 'Kafka Server started' "$log"; then
      return
    fi
    if ! kill -0 "$pid" 2>/dev/null; then
      tail -n 20 "$log" >&2
      fail "node $1 ended while it started"
    fi
    sleep 0.05
  done
  tail -n 20 "$log" >&2
  fail "node $1 was not up after a minute"
}

# PORT: lets a single broker listen there with TLS and SCRAM, with its own certificate that is created now.
secure() {
  secure_port="$1"
  keytool -genkeypair -alias broker -keyalg EC -dname CN=broker -ext SAN=ip:127.0.0.1 -validity 30 \
    -keystore "$dir/broker.p12" -storetype PKCS12 -storepass only-a-test 2>/dev/null
  keytool -exportcert -rfc -alias broker -keystore "$dir/broker.p12" -storepass only-a-test >"$dir/ca.pem" 2>/dev/null
  echo "127.0.0.1:$secure_port" >"$dir/secure"
  users=(--add-scram 'SCRAM-SHA-512=[name=chancery,password=secret]')
}

# BROKERS [OPTION OF THE JVM...]: creates a cluster in $dir and starts it.
start_cluster() {
  local brokers="$1" ids=(1) ports proxies inner=() id cluster formats=() format clients=() tools=() users=() secure_port=
  shift
  if [ "$brokers" = 3 ]; then
    ids=(100 1 2 3)
  fi
  # One for the controller and three for brokers; where clients use proxies, three more for brokers; and one for
  # clients with TLS.
  read -ra ports <<<"$(free_ports 9)"
  if [ -n "${CHANCERY_TEST_KAFKA_SECURE:-}" ]; then
    secure "${ports[8]}"
  fi
  read -ra proxies <<<"${CHANCERY_TEST_KAFKA_PROXIES:-}"
  # The format uses - and _ for the last two digits; as the first one, - would be taken for an option.
  cluster="$(head -c 16 /dev/urandom | base64 | tr '+/' 'ab' | tr -d '=')"
  for id in "${ids[@]}"; do
    mkdir -p "$dir/node-$id"
    if [ "${#proxies[@]}" != 0 ] && [ "$id" != 100 ]; then
      inner=("${proxies[id - 1]}" "${ports[id + 4]}")
      tools+=("127.0.0.1:${ports[id + 4]}")
    else
      inner=()
    fi
    settings "$brokers" "$id" "${ports[0]}" "${ports[id % 100]}" "${inner[@]}" >"$dir/node-$id/settings"
    (become_java kafka.tools.StorageTool format --cluster-id "$cluster" --config "$dir/node-$id/settings" \
      "${users[@]}") \
      >"$dir/node-$id/log" 2>&1 &
    formats+=($!)
    if [ "$id" != 100 ]; then
      clients+=("127.0.0.1:${ports[id]}")
    fi
  done
  for format in "${formats[@]}"; do
    wait "$format" || { cat "$dir"/node-*/log >&2; fail "cannot format storage of a node"; }
  done
  for id in "${ids[@]}"; do launch "$id" "$@"; done
  for id in "${ids[@]}"; do ready "$id"; done
  (IFS=,; echo "${clients[*]}") >"$dir/bootstrap"
  # Kafka's own tools never use a proxy.
  if [ "${#tools[@]}" != 0 ]; then
    clients=("${tools[@]}")
  fi
  (IFS=,; echo "${clients[*]}") >"$dir/tools"
}

# Kills every node of $dir and removes the files of the cluster.
remove_cluster() {
  local node id
  for node in "$dir"/node-*/; do
    [ -d "$node" ] || continue
    id="$(basename "$node")" id="${id#node-}"
    if alive "$id"; then
      end KILL "$id"
    fi
  done
  rm -rf "$dir"/node-*/ "$dir/bootstrap" "$dir/tools" "$dir/broker.p12" "$dir/ca.pem" "$dir/secure"
  if [ -d "$dir" ]; then
    rmdir --ignore-fail-on-non-empty "$dir"
  fi
}
