# shellcheck shell=bash
# Shared by the scripts of this directory: where the clients' libraries are installed.
set -euo pipefail

scripts="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
. "$scripts/../cache.sh"

fail() { printf 'tests/clients/%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

# LANGUAGE: prints the directory of its libraries.
libraries() {
  case "$1" in
    python)
      { python3 -c 'import sys; print(sys.executable, sys.version)' && cat "$scripts/python/requirements.txt"; } |
        cache_entry python
      ;;
    javascript) { node --version && cat "$scripts/javascript/package-lock.json"; } | cache_entry javascript ;;
    *) fail "which language? python or javascript, not '$1'" ;;
  esac
}
