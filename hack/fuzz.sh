#!/usr/bin/env bash
# Runs every native fuzz target of the root module for FUZZTIME, one at a time.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${FUZZTIME:=10s}"

count=0
while IFS=: read -r file target; do
  count=$((count + 1))
  printf '== %s %s (%s)\n' "$(dirname "$file")" "$target" "$FUZZTIME"
  go test -run '^$' -fuzz "^${target}\$" -fuzztime "$FUZZTIME" "./$(dirname "$file")"
done < <(git ls-files --cached --others --exclude-standard '*_test.go' | grep -v '^test/controlplane/' |
  xargs grep -HoE '^func Fuzz[A-Za-z0-9_]+' | sed 's/:func /:/')

[ "$count" -gt 0 ] || { echo 'fuzz: found no fuzz target' >&2; exit 1; }
printf 'fuzz: %d targets passed\n' "$count"
