# shellcheck shell=bash
# Shared by the scripts of this directory: where the generators and the libraries of their clients are installed.
set -euo pipefail

scripts="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
. "$scripts/../../cache.sh"

fail() { printf 'tests/clients/generated/%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

generator=openapi-generator-cli-7.25.0.jar
generator_artifact=org.openapitools:openapi-generator-cli:7.25.0
generator_sha256=41ce4f6b07f196676439d710759fa1ced7a08066d06ff1bf314681470289efae

# PART: prints the directory of its files.
files() {
  case "$1" in
    python)
      { python3 -c 'import sys; print(sys.executable, sys.version)' && cat "$scripts/python/requirements.txt"; } |
        cache_entry openapi-python
      ;;
    typescript) { node --version && cat "$scripts/typescript/package-lock.json"; } | cache_entry openapi-typescript ;;
    generator) printf '%s' "$generator_sha256" | cache_entry openapi-generator ;;
    go) cat "$scripts/go/go.sum" | cache_entry openapi-go ;;
  esac
}
