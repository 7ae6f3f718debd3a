#!/usr/bin/env bash
# Runs every native fuzz target of the operator and its plugin, one at a time. FUZZTIME is a number of inputs
# (20000x), or a time (1m): with a time, Go's fuzzing engine may report on a busy machine that its
# own time is up.
set -euo pipefail
cd "$(dirname "$0")/.."

count=0
while IFS=: read -r file target; do
  count=$((count + 1))
  printf '== %s %s\n' "$(dirname "$file")" "$target"
  go -C "$(dirname "$file")" test -vet=off -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-5000x}" .
done < <(git ls-files '*_test.go' | grep -v '^test/controlplane/' | xargs grep -HoE '^func Fuzz[A-Za-z0-9_]+' | sed 's/:func /:/')

[ "$count" -gt 0 ] || { echo 'fuzz: found no fuzz target' >&2; exit 1; }
printf 'fuzz: %d targets passed\n' "$count"
