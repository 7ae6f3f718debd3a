#!/usr/bin/env bash
# Runs every native fuzz target of the operator and its plugin, one at a time. FUZZTIME is a number of inputs
# (20000x), or a time (1m): with a time, Go's fuzzing engine may report on a busy machine that its own time is up.
set -euo pipefail
cd "$(dirname "$0")/.."

git ls-files '*_test.go' | grep -v '^test/controlplane/' | xargs grep -HoE '^func Fuzz[A-Za-z0-9_]+' | sed 's|/[^/]*:func | |' |
  while read -r package target; do
    printf '== %s %s\n' "$package" "$target"
    go -C "$package" test -vet=off -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-5000x}" . </dev/null
  done
