#!/usr/bin/env bash
# Runs tiers of tests: test.sh TIER... Prints a line per package as it ends, what failed or could
# not run, and the counts. In the environment, RUN picks tests by name, RACE=1 runs the unit tests
# of packages whose goroutines share memory with the race detector, and LONG=1 runs all rounds of
# each invariant. NEVER_SKIP names suites that have to run, as node|hostile: if one cannot, that is a failure. Called
# by make, which has built the programs that the tiers need.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" != --json ]; then
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  code=0
  echo "Running the tests of: $*. Compiling comes first; then each package prints a line when it ends."
  go run gotest.tools/gotestsum@v1.13.0 --format=pkgname --format-hide-empty-pkg --jsonfile="$log" --raw-command -- "$0" --json "$@" || code=$?
  sed -n 's/.*"Package":"\([^"]*\)".*"Output":"SKIP: \(.*\)\\n".*/SKIP \1: \2/p' "$log" | sort -u # of whole packages
  if [ -n "${NEVER_SKIP:-}" ] && grep -E '"Package":"[^"]*/test/('"$NEVER_SKIP"')"' "$log" | grep -E '"Output":"SKIP: |"Action":"skip",[^}]*/test/hostile"'; then
    echo "test.sh: what has to run on this machine ($NEVER_SKIP) could not"
    code=1
  fi
  echo "One test alone: go test ./test/integration -run '^TestInjection\$' -v, which builds what it needs; or make test RUN=TestInjection"
  exit "$code"
fi
shift

sharing='^[^/]+/[^/]+/[^/]+/(certs|cmd|controllers|webhooks)(/|$)' # the packages whose goroutines share memory
suites='/test/(chaos|cluster|hostile|integration|node|scale|stand)(/|$)'
plugin=cmd/kubectl-sidecarset # a module of its own
short=-short
[ "${LONG:-}" != 1 ] || short=
code=0

tests() { # tests MODULE FLAG... PACKAGE...: a failure does not keep the next ones from running
  go -C "$1" test -json -vet=off -timeout=60m -run="${RUN:-}" "${@:2}" || code=1
}

suites_in_turn() { # suites_in_turn MODULE PACKAGE ...: one after the other
  while [ $# -gt 0 ]; do
    tests "$1" -count=1 "$2"
    shift 2
  done
}

logs=() jobs=()
beside() { # beside COMMAND...: runs it beside what follows. Its lines come in one piece, when all have ended
  local log
  log=$(mktemp)
  ("$@" && exit "$code") >"$log" &
  jobs+=($!) logs+=("$log")
}

units() {
  local all
  all=$(go list ./...)
  tests . $short $(grep -vE "$sharing|$suites" <<<"$all")
  if [ "${RACE:-}" = 1 ]; then
    CGO_ENABLED=1 tests . $short -race $(grep -E "$sharing" <<<"$all")
  else
    tests . $short $(grep -E "$sharing" <<<"$all")
  fi
  tests test/controlplane $STAND_PACKAGES
  tests hack/image ./...
  tests $plugin -count=1 $short $(go -C $plugin list ./... | grep -v /clustertest$)
}

for tier; do
  case $tier in
  units) units ;;
  test)
    # Three suites at a time, each with a control plane: with more, the API servers of a small machine answer so late
    # that calls fail. The unit tests take what the suites leave of the processors.
    beside suites_in_turn . ./test/integration
    beside suites_in_turn . ./test/cluster
    beside suites_in_turn . ./test/node $plugin ./clustertest
    renice -n 15 $BASHPID >/dev/null
    units
    ;;
  hostile) tests . -count=1 -p=1 ./test/hostile/... ;;
  chaos)
    [ -x "$OPERATOR_PREVIOUS" ] || unset OPERATOR_PREVIOUS # of a shallow clone
    tests . -count=1 -p=2 ./test/chaos ./test/stand
    ;;
  charts) tests test/ecosystem -count=1 ./... ;; # a module of its own, which compiles Helm and Prometheus
  *)
    echo "test.sh: no tier $tier" >&2
    exit 2
    ;;
  esac
done
for i in "${!jobs[@]}"; do
  wait "${jobs[i]}" || code=1
  cat "${logs[i]}" && rm "${logs[i]}"
done
exit "$code"
