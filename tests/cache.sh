# shellcheck shell=bash
# Cache of files that the tests fetch, in ~/.cache/chancery. The entry PART-HASH is a directory, and HASH is the hash of
# everything that determines its files. An entry is created under another name and renamed when it is complete. Its
# checksums are compared before each use, or once for each run of all tests; an incomplete or altered entry is created again.

cache="${XDG_CACHE_HOME:-$HOME/.cache}/chancery"

# PART: prints the path of its entry. Standard input is the data that determines its files.
cache_entry() { printf '%s/%s-%s' "$cache" "$1" "$(sha256sum | cut -c 1-16)"; }

# ENTRY: whether the entry is complete and unaltered.
cache_is_valid() { (cd "$1" && sha256sum --check --quiet --strict .sha256) >/dev/null 2>&1; }

# ENTRY COMMAND...: creates the entry unless it is valid. The command gets an empty directory as its last argument and
# fills it.
cache_fill() (
  entry="$1" part="$1.part"
  mkdir -p "$cache"
  exec 9>"$entry.lock"
  flock 9
  if cache_is_valid "$entry"; then exit; fi
  printf 'making %s\n' "$entry" >&2
  rm -rf "$entry" "$part"
  mkdir "$part"
  "${@:2}" "$part" 9>&-
  (cd "$part" && find . -type f -print0 | sort -z | xargs -0 sha256sum >"$entry.sha256" && mv "$entry.sha256" .sha256)
  mv -T "$part" "$entry"
)
