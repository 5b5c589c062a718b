# shellcheck shell=bash
# Report at the end of tests/run: duration of each step, whether it started cold or warm, the slowest tests, and what the tests
# that failed printed.
#
# Stable libtest prints when a test ends, but not how long it took. It starts tests in the order of their names, and the
# next one when one ends. So the ends also give the start of each test.

notes="$(mktemp -d)"
current=()
: >"$notes/steps" >"$notes/tests"
beside=
trap report EXIT

say() { printf '\n== %s\n' "$*"; }

# TITLE COMMAND...: runs a step of the part $part and notes its times. A step that fails ends the script: the report notes it.
step() {
  say "$1"
  times >"$notes/times" # here: a subshell has times of its own
  current=("$part" "$1" "$EPOCHREALTIME" "$(sed -n 2p "$notes/times")")
  "${@:2}"
  note_step passed
}
# RESULT: notes the current step.
note_step() {
  local start=cold
  [ ! -e "$notes/warm-${current[0]}" ] || start=warm
  times >"$notes/times"
  printf '%s\t' "${current[@]}" "$EPOCHREALTIME" "$(sed -n 2p "$notes/times")" "$1" "$start" >>"$notes/steps"
  echo >>"$notes/steps"
  current=()
}
# PART PATH...: the part starts warm if all of these exist, which it would otherwise compile or fetch.
note_start() {
  local path
  for path in "${@:2}"; do [ -e "$path" ] || return 0; done
  : >"$notes/warm-$1"
}

# COMMAND...: runs it alongside the next steps, in a process group of its own, which can be ended as a whole. Its tests are
# noted in a file of their own.
run_beside() {
  set -m
  (notes_of_tests="$notes/tests-beside"; "$@") >"$notes/beside" 2>&1 &
  beside=$!
  set +m
}
# Waits for the end of that command, and prints its output.
await_beside() {
  local group="$beside" result=0
  wait "$group" || result=$?
  beside=
  cat "$notes/beside"
  return "$result"
}

# THREADS ARGUMENT...: runs `cargo test` with that many tests at a time, and notes when each line was printed.
notes_of_tests="$notes/tests"
run_tests() {
  printf '0\tthreads %s\n' "$1" >>"$notes_of_tests"
  RUST_TEST_THREADS="$1" cargo test "${@:2}" | while IFS= read -r line; do
    printf '%s\n' "$line"
    printf '%s\t%s\n' "$EPOCHREALTIME" "$line" >&3
  done 3>>"$notes_of_tests"
}

report() {
  [ "${#current[@]}" = 0 ] || note_step failed
  [ -z "$beside" ] || kill -- "-$beside" 2>/dev/null || true
  if [ -s "$notes/steps" ]; then
    printf '\n%-10s %-20s %8s %8s  %-6s %s\n' PART STEP WALL CPU START RESULT
    tr , . <"$notes/steps" | awk -F '\t' '
      function seconds(text, parts) { split(text, parts, /[ms ]+/); return (parts[1] + parts[3]) * 60 + parts[2] + parts[4] }
      function clock(time) { return sprintf("%d:%02d", time / 60, time % 60) }
      { wall = $5 - $3; cpu = seconds($6) - seconds($4); print_row($1, $2, wall, cpu, $8, $7); all_wall += wall; all_cpu += cpu }
      END { print_row("all", "", all_wall, all_cpu, "", "") }
      function print_row(part, step, wall, cpu, start, result) {
        printf "%-10s %-20s %8s %8s  %-6s %s\n", part, step, clock(wall), clock(cpu), start, result
      }'
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
      }' "$notes"/tests* | sort -rn | sed -n 1,20p # `head` would end early, and `sort` would fail for it
    # Again at the end, where a reader of a long output finds them: what the tests that failed printed.
    cut -f 2- "$notes"/tests* | awk '
      /^---- .* stdout ----$/ { left = 60 }
      /^(failures:|test result: .*)$/ { left = 0 }
      left > 0 { if (!found++) print "\nThe tests that failed, with their first 60 lines each:"; print substr($0, 1, 1000); left-- }'
  fi
  rm -rf "$notes"
}
