# shellcheck shell=bash
# The report at the end of tests/run: how long each step took, and the slowest tests.
#
# Stable libtest prints when a test ends, but not how long it took. It starts tests in the order of their names, and the
# next one when one ends; so the ends also say when each test started.

notes="$(mktemp -d)"
: >"$notes/steps" >"$notes/tests"
trap report EXIT

say() { printf '\n== %s\n' "$*"; }

# TITLE COMMAND...: runs a step of the part $part and notes its times.
step() {
  local start="$EPOCHREALTIME" before
  say "$1"
  times >"$notes/times"
  before="$(sed -n 2p "$notes/times")"
  "${@:2}"
  times >"$notes/times"
  printf '%s\t' "$part" "$1" "$start" "$EPOCHREALTIME" "$before" "$(sed -n 2p "$notes/times")" >>"$notes/steps"
  echo >>"$notes/steps"
}

# THREADS ARGUMENT...: runs `cargo test` with that many tests at a time, and notes when each line was printed.
run_tests() {
  printf '0\tthreads %s\n' "$1" >>"$notes/tests"
  RUST_TEST_THREADS="$1" cargo test "${@:2}" | while IFS= read -r line; do
    printf '%s\n' "$line"
    printf '%s\t%s\n' "$EPOCHREALTIME" "$line" >&3
  done 3>>"$notes/tests"
}

report() {
  if [ -s "$notes/steps" ]; then
    printf '\n%-10s %-20s %8s %8s\n' PART STEP WALL CPU
    tr , . <"$notes/steps" | awk -F '\t' '
      function seconds(text, parts) { split(text, parts, /[ms ]+/); return (parts[1] + parts[3]) * 60 + parts[2] + parts[4] }
      function clock(time) { return sprintf("%d:%02d", time / 60, time % 60) }
      { wall = $4 - $3; cpu = seconds($6) - seconds($5); print_row($1, $2, wall, cpu); all_wall += wall; all_cpu += cpu }
      END { print_row("all", "", all_wall, all_cpu) }
      function print_row(part, step, wall, cpu) { printf "%-10s %-20s %8s %8s\n", part, step, clock(wall), clock(cpu) }'
  fi
  if [ -s "$notes/tests" ]; then
    printf '\nThe slowest tests, in seconds:\n'
    awk -F '\t' '
      { sub(",", ".", $1) }
      $2 ~ /^threads / { threads = substr($2, 9) }
      $2 ~ /^running [0-9]+ test/ { start = $1; count = 0 }
      $2 ~ /^test .* \.\.\. / { split($2, words, " "); names[count] = words[2]; ends[count++] = $1 }
      $2 ~ /^test result: / {
        for (i = 0; i < count; i++) {
          for (j = i; j > 0 && order[j - 1] > names[i]; j--) order[j] = order[j - 1]
          order[j] = names[i]
        }
        for (next_one = 0; next_one < threads && next_one < count; next_one++) starts[order[next_one]] = start
        for (i = 0; i < count; i++) {
          printf "%8.1f  %s\n", ends[i] - starts[names[i]], names[i]
          if (next_one < count) starts[order[next_one++]] = ends[i]
        }
        count = 0
      }' "$notes/tests" | sort -rn | sed -n 1,20p # `head` would end early, and `sort` would fail for it
  fi
  rm -rf "$notes"
}
