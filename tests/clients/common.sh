# shellcheck shell=bash
# What the scripts beside this one share: where the clients' libraries are installed. They are found by what they are
# made of, so that other versions get folders of their own.
#
#   CHANCERY_TEST_CLIENTS   the folder of all of them: ~/.cache/chancery/clients
set -euo pipefail

scripts="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
clients="${CHANCERY_TEST_CLIENTS:-${XDG_CACHE_HOME:-$HOME/.cache}/chancery/clients}"

fail() { printf 'tests/clients/%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

# LANGUAGE: the folder of its libraries.
libraries() {
  local made_of
  case "$1" in
    python) made_of="$(python3 -c 'import sys; print(sys.executable, sys.version)' && cat "$scripts/python/requirements.txt")" ;;
    javascript) made_of="$(node --version && cat "$scripts/javascript/package-lock.json")" ;;
    *) fail "which language? python or javascript, not '$1'" ;;
  esac
  printf '%s/%s-%s' "$clients" "$1" "$(cksum <<<"$made_of" | cut -d ' ' -f 1)"
}
