#!/usr/bin/env bash
# Runs every native fuzz target of the root module for FUZZTIME, one at a time.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${FUZZTIME:=10s}"

log=$(mktemp)
trap 'rm -f "$log"' EXIT

fuzz() { # fuzz TARGET PACKAGE
  go test -run '^$' -fuzz "^$1\$" -fuzztime "$FUZZTIME" "$2" 2>&1 | tee "$log"
}

# A busy machine may make Go's fuzzing engine report that its own time is up. That
# is not a finding: a finding names its input, and the target fails again with it.
only_late() { grep -q 'context deadline exceeded' "$log" && ! grep -qE 'Failing input|panic: |_test\.go:[0-9]+' "$log"; }

count=0
while IFS=: read -r file target; do
  count=$((count + 1))
  printf '== %s %s (%s)\n' "$(dirname "$file")" "$target" "$FUZZTIME"
  fuzz "$target" "./$(dirname "$file")" && continue
  only_late && fuzz "$target" "./$(dirname "$file")" && continue
  exit 1
done < <(git ls-files --cached --others --exclude-standard '*_test.go' | grep -v '^test/controlplane/' |
  xargs grep -HoE '^func Fuzz[A-Za-z0-9_]+' | sed 's/:func /:/')

[ "$count" -gt 0 ] || { echo 'fuzz: found no fuzz target' >&2; exit 1; }
printf 'fuzz: %d targets passed\n' "$count"
