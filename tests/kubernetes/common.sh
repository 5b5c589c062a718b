# shellcheck shell=bash
# Shared by the scripts of this directory. They run a Kubernetes API with its controllers on the loopback, without
# containers: kwok takes the role of the kubelet of every node, and only writes the status that a kubelet would write.
# Authorization is by RBAC; the kubeconfig is that of an administrator.
#
# An instance is a directory $dir: a directory for each component has its arguments, its log and its process id;
# `kubeconfig` is for clients.
#
#   CHANCERY_TEST_KUBERNETES_API_FLAGS    more flags of kube-apiserver, one per line
#   CHANCERY_TEST_KUBERNETES_UNOPTIMIZED  if set, the compiler does not optimize. That saves little of the time of `install`,
#                                         and a start takes twice the processor time
#   CHANCERY_TEST_KUBERNETES_CHECKED      entry of the cache whose checksums were compared already: `tests/run` compares them once,
#                                         not for each instance
set -euo pipefail
umask 077

scripts="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
module="$scripts/control-plane"
components=(etcd kube-apiserver kube-controller-manager kube-scheduler kwok)
. "$scripts/../cache.sh"
command -v go >/dev/null || PATH="$PATH:/usr/local/go/bin"

fail() { printf 'tests/kubernetes/%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

# Prints the version of Go that builds the module: a newer one than is installed, if that can fetch it.
go_version() { (cd "$module" && go env GOVERSION) 2>/dev/null || echo none; }

compiler_flags=()
if [ -n "${CHANCERY_TEST_KUBERNETES_UNOPTIMIZED:-}" ]; then
  compiler_flags=(-gcflags='all=-N -l')
fi
# The binary that contains all components, and the stages of kwok.
built="$({ go_version && echo "${compiler_flags[*]}" && cat "$module/main.go" "$module/go.mod" "$module/go.sum"; } |
  cache_entry kubernetes)"

installed() { [ "${CHANCERY_TEST_KUBERNETES_CHECKED:-}" = "$built" ] || cache_is_valid "$built"; }

# DIR: sets $dir to the directory of a new instance.
new_instance() {
  mkdir -p "$1"
  dir="$(realpath "$1")"
  mkdir "$dir/etcd" 2>/dev/null || fail "there is an instance already: tests/kubernetes/stop $dir"
}

# DIR: sets $dir to the directory of an instance.
instance_of() {
  dir="$(realpath "$1")"
  [ -f "$dir/kubeconfig" ] || fail "no instance in $dir"
}

# COMPONENT: checks its name.
check_component() { [[ " ${components[*]} " = *" $1 "* ]] || fail "no component '$1', only ${components[*]}"; }

# PORT: whether a process listens there.
listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# COUNT: prints free ports of the loopback. They are below the range that Linux assigns to clients, so that none is taken
# while its component is dead. Each process starts at its own port, with more ports after it than an instance needs:
# instances that start concurrently have neighboring pids.
free_ports() {
  local port=$((10000 + $$ * 4 % 6000)) free=()
  while [ "${#free[@]}" -lt "$1" ]; do
    listens "$port" || free+=("$port")
    port=$((port + 1))
  done
  echo "${free[@]}"
}

# ARGUMENT...: becomes kubectl. It reads no settings of the user and caches what the API offers in $dir.
become_kubectl() {
  KUBECONFIG="$dir/kubeconfig" KUBERC=off KUBECACHEDIR="$dir/kubectl" exec "$built/control-plane" kubectl "$@"
}

# COMPONENT: whether it runs or is paused. Another process may have its process id, and a dead process that is not reaped
# has no command line. Therefore the command line is checked: it starts with the directory of the component.
alive() {
  local pid
  pid="$(cat "$dir/$1/pid" 2>/dev/null)" || return 1
  [ "$(head -zn 1 "/proc/$pid/cmdline" 2>/dev/null | tr -d '\0')" = "$dir/$1" ]
}

# SIGNAL COMPONENT
signal() {
  alive "$2" || fail "$2 of $dir does not run"
  kill -s "$1" "$(cat "$dir/$2/pid")"
}

# PID: whether a process is dead, and at most not reaped by its parent. Its sockets and locks are released only with its
# last thread.
dead() {
  local threads=("/proc/$1/task/"*)
  [ ! -d "/proc/$1" ] || { [ "${#threads[@]}" = 1 ] && grep -qs ') [XZ] ' "/proc/$1/stat"; }
}

# COMPONENT: kills it, and waits until it is dead.
end() {
  local pid
  pid="$(cat "$dir/$1/pid")"
  signal KILL "$1"
  until dead "$pid"; do sleep 0.02; done
}

# COMPONENT: starts it with its arguments. It outlives its terminal. GOGC spends memory, 130 MB in the API server, to save some
# 15% of the processor time of a start.
launch() {
  local home="$dir/$1" arguments
  mapfile -t arguments <"$home/arguments"
  if [ -f "$home/log" ]; then
    mv "$home/log" "$home/log.before"
  fi
  (trap '' HUP; cd "$home" && KWOK_WORKDIR="$home" GOGC=400 exec -a "$home" "$built/control-plane" "$1" "${arguments[@]}") \
    </dev/null >"$home/log" 2>&1 &
  echo $! >"$home/pid"
  disown # otherwise the shell reports its death
}

# COMPONENT ARGUMENT...: gives it arguments and a directory, and starts it.
create() {
  mkdir -p "$dir/$1"
  printf '%s\n' "${@:2}" >"$dir/$1/arguments"
  launch "$1"
}

# COMPONENT COMMAND...: waits until the command succeeds. The component must not end before.
await() {
  for _ in {1..600}; do
    if "${@:2}"; then
      return
    fi
    if dead "$(cat "$dir/$1/pid")"; then
      tail -n 20 "$dir/$1/log" >&2
      fail "$1 ended while it started"
    fi
    sleep 0.1
  done
  tail -n 20 "$dir/$1/log" >&2
  fail "$1 was not ready after a minute"
}

port_of() { cat "$dir/$1/port"; }
serves() { "$built/control-plane" ready "$dir/kubeconfig" 2>/dev/null; }

# COMPONENT: waits until it can be used. Controllers, scheduler and kwok listen nowhere, and wait for the API themselves.
ready() {
  case "$1" in
    etcd) await etcd listens "$(port_of etcd)" ;;
    kube-apiserver)
      await kube-apiserver listens "$(port_of kube-apiserver)"
      write_kubeconfig
      await kube-apiserver serves
      ;;
    *) await "$1" alive "$1" ;;
  esac
}

# The API server has created its certificate when it listens. It is for 127.0.0.1, not for the name localhost.
write_kubeconfig() {
  local authority
  authority="$(base64 -w 0 "$dir/kube-apiserver/apiserver.crt")"
  cat >"$dir/kubeconfig" <<TEXT
apiVersion: v1
kind: Config
current-context: test
contexts:
- name: test
  context: {cluster: test, user: admin}
clusters:
- name: test
  cluster:
    server: https://127.0.0.1:$(port_of kube-apiserver)
    certificate-authority-data: $authority
users:
- name: admin
  user: {token: $(cut -d , -f 1 "$dir/kube-apiserver/tokens")}
TEXT
}

# Creates an instance in $dir and starts it. Times are shorter than by default: a node whose kubelet is silent is not
# ready after 8 s, not 50.
start_instance() {
  local ports more=()
  read -ra ports <<<"$(free_ports 3)"
  mkdir "$dir/kube-apiserver"
  echo "${ports[0]}" >"$dir/etcd/port"
  echo "${ports[1]}" >"$dir/kube-apiserver/port"
  # The kernel selects the port for other members of etcd, of which there are none. Nothing must survive a power cut.
  create etcd --name=etcd --data-dir="$dir/etcd/data" --log-level=warn --unsafe-no-fsync \
    --listen-client-urls="http://127.0.0.1:${ports[0]}" --advertise-client-urls="http://127.0.0.1:${ports[0]}" \
    --listen-peer-urls=http://127.0.0.1:0 --initial-advertise-peer-urls=http://127.0.0.1:0 \
    --initial-cluster=etcd=http://127.0.0.1:0

  if [ -n "${CHANCERY_TEST_KUBERNETES_API_FLAGS:-}" ]; then
    mapfile -t more <<<"$CHANCERY_TEST_KUBERNETES_API_FLAGS"
  fi
  "$built/control-plane" key >"$dir/key"
  echo "$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n'),admin,admin,system:masters" >"$dir/kube-apiserver/tokens"
  # The admission plugin ServiceAccount would refuse pods until a controller has created the account of a new namespace.
  create kube-apiserver --etcd-servers="http://127.0.0.1:${ports[0]}" --cert-dir="$dir/kube-apiserver" \
    --bind-address=127.0.0.1 --advertise-address=127.0.0.1 --secure-port="${ports[1]}" \
    --endpoint-reconciler-type=none --service-cluster-ip-range=10.96.0.0/16 \
    --authorization-mode=RBAC --token-auth-file="$dir/kube-apiserver/tokens" \
    --disable-admission-plugins=ServiceAccount --service-account-issuer=https://127.0.0.1 \
    --service-account-key-file="$dir/key" --service-account-signing-key-file="$dir/key" "${more[@]}"
  ready etcd
  ready kube-apiserver

  create kube-controller-manager --kubeconfig="$dir/kubeconfig" --leader-elect=false --secure-port=0 \
    --service-account-private-key-file="$dir/key" --flex-volume-plugin-dir="$dir/kube-controller-manager" \
    --node-monitor-period=1s --node-monitor-grace-period=8s
  create kube-scheduler --kubeconfig="$dir/kubeconfig" --leader-elect=false --secure-port=0
  # Every container has the output in this file, in the format of container runtimes:
  #   2026-11-21T09:00:00.123456789Z stdout F TEXT
  : >"$dir/output.log"
  cat >"$dir/output.yaml" <<TEXT
apiVersion: kwok.x-k8s.io/v1alpha1
kind: ClusterLogs
metadata: {name: output}
spec:
  logs: [{logsFile: "$dir/output.log"}]
TEXT
  create kwok --kubeconfig="$dir/kubeconfig" --config="$built/stages.yaml" --config="$module/failures.yaml" \
    --config="$dir/output.yaml" --server-address="127.0.0.1:${ports[2]}" --node-port="${ports[2]}" \
    --tls-cert-file="$dir/kube-apiserver/apiserver.crt" --tls-private-key-file="$dir/kube-apiserver/apiserver.key" \
    --manage-all-nodes --cidr=10.244.0.0/16 --node-ip=127.0.0.1 --node-lease-duration-seconds=4 --v=WARN
  ready kube-controller-manager
  ready kube-scheduler
  ready kwok
}

# Kills every component of $dir and removes the files of the instance.
remove_instance() {
  local component
  for component in "${components[@]}"; do
    if alive "$component"; then
      end "$component"
    fi
    rm -rf "${dir:?}/$component"
  done
  rm -rf "$dir/kubectl" "$dir/key" "$dir/kubeconfig" "$dir/output.log" "$dir/output.yaml"
  if [ -d "$dir" ]; then
    rmdir --ignore-fail-on-non-empty "$dir"
  fi
}
