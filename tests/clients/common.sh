# shellcheck shell=bash
# Shared by the scripts of this directory: where the clients' libraries are installed.
set -euo pipefail

scripts="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
. "$scripts/../cache.sh"

fail() { printf 'tests/clients/%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

languages="asyncapi go java javascript python"

# LANGUAGE: prints the directory of its libraries, or of its compiled programs.
libraries() {
  case "$1" in
    python)
      { python3 -c 'import sys; print(sys.executable, sys.version)' && cat "$scripts/python/requirements.txt"; } |
        cache_entry python
      ;;
    javascript | asyncapi) { node --version && cat "$scripts/$1/package-lock.json"; } | cache_entry "$1" ;;
    go) { go version && cat "$scripts"/go/go.sum "$scripts"/go/*/*.go; } | cache_entry go-clients ;;
    java) { javac -version && cat "$scripts"/java/libs.sha256 "$scripts"/java/*.java; } | cache_entry java-clients ;;
    *) fail "which language? one of $languages, not '$1'" ;;
  esac
}
