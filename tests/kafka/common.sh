# shellcheck shell=bash
# Shared by the scripts of this directory: where Kafka is installed, and how its programs are run.
#
#   CHANCERY_TEST_KAFKA_HEAP      heap of a node or tool (default: 256m)
#   CHANCERY_TEST_KAFKA_PROXIES   ports of proxies through which clients reach the brokers, one for each broker
#   CHANCERY_TEST_KAFKA_SECURE    if set, a single broker has a second listener, with TLS and SCRAM: `secure` in the cluster's
#                                 directory has its address, `ca.pem` is its certificate, the login is `chancery` with `secret`
#   CHANCERY_TEST_KAFKA_SETTINGS  more settings of every node, one per line; they override those of node.properties
set -euo pipefail

version=4.3.1
scripts="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
. "$scripts/../cache.sh"
# The jars, which have these checksums.
libs="$(cache_entry kafka <"$scripts/libs.sha256")"

fail() { printf 'tests/kafka/%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

installed() { cache_is_valid "$libs"; }

# Prints the path of the archive of the classes that a node loads, as this java maps them into memory: another java needs
# another archive. Without an archive everything works, and a node takes twice as long to start.
class_archive() {
  { echo "$libs" && stat -c '%n %s %Y' "$(readlink -f "$(command -v java)")"; } | cache_entry kafka-classes
}

# [OPTION...] CLASS [ARGUMENT...]: becomes a JVM that starts fast and needs little memory.
become_java() {
  local archive options
  archive="$(class_archive)/classes.jsa"
  options=(-Xmx"${CHANCERY_TEST_KAFKA_HEAP:-256m}" -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData)
  if [ -s "$archive" ]; then
    options+=(-XX:SharedArchiveFile="$archive")
  fi
  exec java "${options[@]}" -Dlog4j2.configurationFile="$scripts/log4j2.properties" -cp "$libs/*" "$@"
}
