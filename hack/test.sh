#!/usr/bin/env bash
# Runs tiers of tests, one after the other: test.sh TIER... Prints a line per package as it ends,
# what failed or could not run, and the counts. RUN in the environment picks tests by name.
# Called by make, which has built the programs that the tiers need.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" != --json ]; then
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  code=0
  echo "Running the tests of: $*. Compiling comes first; then each package prints a line when it ends."
  go run gotest.tools/gotestsum@v1.13.0 --format=pkgname --format-hide-empty-pkg --jsonfile="$log" --raw-command -- "$0" --json "$@" || code=$?
  sed -n 's/.*"Package":"\([^"]*\)".*"Output":"SKIP: \(.*\)\\n".*/SKIP \1: \2/p' "$log" | sort -u # of whole packages
  echo "One test alone: go test ./test/integration -run '^TestInjection\$' -v, which builds what it needs; or make test RUN=TestInjection"
  exit "$code"
fi
shift

units=(./apis/... ./certs/... ./cmd/... ./config/... ./controllers/... ./docs/... ./hack/... ./internal/... ./webhooks/...
  ./test/bench/... ./test/conformance/... ./test/protocol/...)
# The packages whose goroutines share memory. Those of internal/ decide, and start none but these.
sharing=(./certs/... ./cmd/... ./controllers/... ./webhooks/... ./internal/events/...)
code=0

plugin=cmd/kubectl-sidecarset # a module of its own

tests() { # tests MODULE FLAG... PACKAGE...: a failure does not keep the next ones from running
  go -C "$1" test -json -vet=off -timeout=60m -run="${RUN:-}" "${@:2}" || code=1
}

for tier; do
  case $tier in
  unit)
    tests . -short "${units[@]}"
    tests test/controlplane $STAND_PACKAGES
    tests hack/image -short ./...
    tests $plugin -count=1 -short $(go -C $plugin list ./... | grep -v /clustertest$)
    ;;
  long)
    tests . "${units[@]}"
    tests hack/image ./...
    ;;
  race) CGO_ENABLED=1 tests . -race -short "${sharing[@]}" ;;
  suites)
    # Beside the others, which wait more than they compute. Its lines come in one piece.
    plugin_log=$(mktemp)
    (tests $plugin -count=1 ./clustertest && exit "$code") >"$plugin_log" &
    tests . -count=1 -p=3 ./test/integration ./test/cluster ./test/node
    wait $! || code=1
    cat "$plugin_log" && rm "$plugin_log"
    ;;
  hostile) tests . -count=1 -p=1 ./test/hostile/... ;;
  chaos)
    [ -x "$OPERATOR_PREVIOUS" ] || unset OPERATOR_PREVIOUS # of a shallow clone
    tests . -count=1 -p=1 ./test/chaos/... ./test/stand
    ;;
  *)
    echo "test.sh: no tier $tier" >&2
    exit 2
    ;;
  esac
done
exit "$code"
