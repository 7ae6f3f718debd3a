#!/usr/bin/env bash
# Runs every native fuzz target of the operator and its plugin, one at a time; with SINCE=COMMIT, those
# of packages with a file that has changed since. FUZZTIME is a number of inputs (20000x), or a
# time (1m): with a time, Go's fuzzing engine may report on a busy machine that its own time is up.
set -euo pipefail
cd "$(dirname "$0")/.."

targets=$(git ls-files '*_test.go' | grep -v '^test/controlplane/' | xargs grep -HoE '^func Fuzz[A-Za-z0-9_]+' | sed 's|/[^/]*:func | |')
[ -n "$targets" ] || { echo 'fuzz: found no fuzz target' >&2; exit 1; }

count=0
while read -r package target; do
  if [ -n "${SINCE:-}" ] && git diff --quiet "$SINCE" -- "$package"; then continue; fi
  count=$((count + 1))
  printf '== %s %s\n' "$package" "$target"
  go -C "$package" test -vet=off -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-5000x}" .
done <<<"$targets"
printf 'fuzz: %d of %d targets ran, and passed\n' "$count" "$(wc -l <<<"$targets")"
