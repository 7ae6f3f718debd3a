#!/usr/bin/env bash
# The demo: a real control plane on loopback, two replicas of the operator as
# processes, and what a user would look at. `demo.sh up` leaves it running;
# `demo.sh down` stops it, by process id. Called by make, which sets STATE,
# STAND and OPERATOR.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${STATE:?where the demo keeps its state}" "${STAND:?the launcher of the control plane}"

PLANE=$STATE/plane
NAMESPACE=sidecarset-system

title() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() { # show a command as a user would type it, then run it
  printf '$ kubectl %s\n' "$*"
  "$KUBECTL" "$@"
}

free_port() { # a loopback port that nothing listens on just now, below the local ports of connections
  local port
  while port=$((20000 + RANDOM % 12000)); (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
  echo "$port"
}

start() { # start NAME COMMAND...: in the background, its pid in STATE/NAME.pid
  local name=$1
  shift
  setsid "$@" >"$STATE/$name.log" 2>&1 </dev/null &
  echo "$!" >"$STATE/$name.pid"
}

stop() { # stop NAME: the process that `start NAME` started, if it is still that one
  local file=$STATE/$1.pid program=$2 pid
  [ -f "$file" ] || return 0
  pid=$(<"$file")
  if [ "$(readlink "/proc/$pid/exe" 2>/dev/null)" = "$(readlink -f "$program")" ]; then
    kill "$pid" 2>/dev/null || true
    for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -9 "$pid" 2>/dev/null || true
  fi
  rm -f "$file"
}

wait_for() { # wait_for SECONDS WHAT COMMAND...: until COMMAND succeeds
  local deadline=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    if [ "$SECONDS" -ge "$deadline" ]; then
      echo "demo: waited in vain for $what; logs are in $STATE" >&2
      "$@" || true
      return 1
    fi
    sleep 0.2
  done
}

# ready PORT: the replica whose probes are on PORT is ready.
ready() {
  exec 3<>"/dev/tcp/127.0.0.1/$1" && printf 'GET /readyz HTTP/1.0\r\n\r\n' >&3 && grep -q '^HTTP/1.[01] 200' <&3
}

# install_operator PORT: the whole install, except that webhooks are reached by
# URL on PORT and replicas run as processes.
install_operator() {
  "$KUBECTL" kustomize test/overlays/demo | sed "s#https://127.0.0.1:9443/#https://127.0.0.1:$1/#" |
    "$KUBECTL" apply --server-side -f - >/dev/null
  for _ in {1..12}; do # kubectl fails, and does not wait, while there is no condition at all
    "$KUBECTL" wait --for=condition=Established crd/sidecarsets.apps.kruise.io --timeout=10s >/dev/null 2>&1 && return
    sleep 0.2
  done
  "$KUBECTL" wait --for=condition=Established crd/sidecarsets.apps.kruise.io --timeout=1s >/dev/null
}

# operator_kubeconfig: the rights of the operator's ServiceAccount, no more.
operator_kubeconfig() {
  local token
  token=$("$KUBECTL" -n "$NAMESPACE" create token sidecarset-operator --duration 24h)
  (umask 077 && cp "$KUBECONFIG" "$STATE/operator.kubeconfig")
  "$KUBECTL" --kubeconfig "$STATE/operator.kubeconfig" config set-credentials operator --token "$token" >/dev/null
  "$KUBECTL" --kubeconfig "$STATE/operator.kubeconfig" config set-context --current --user operator >/dev/null
}

# start_replicas PORT: two replicas behind one address, as a Service would do it.
start_replicas() {
  local i webhook probe backends=() probes=()
  for i in 1 2; do
    webhook=$(free_port) probe=$(free_port)
    POD_NAME=replica-$i start "replica-$i" "$OPERATOR" --kubeconfig "$STATE/operator.kubeconfig" --namespace "$NAMESPACE" \
      --webhook-bind-address "127.0.0.1:$webhook" --webhook-san 127.0.0.1 --pod-webhook-url "https://127.0.0.1:$1" \
      --health-probe-bind-address "127.0.0.1:$probe" --metrics-bind-address 0 --drain-grace 0s
    backends+=(-to "127.0.0.1:$webhook") probes+=("$probe")
  done
  start splice "$SPLICE" -listen "127.0.0.1:$1" "${backends[@]}"
  for probe in "${probes[@]}"; do wait_for 60 "a replica of the operator" ready "$probe"; done
}

up() {
  : "${OPERATOR:?the operator}" "${SPLICE:?the TCP splice}"
  if [ -f "$STATE/replica-1.pid" ]; then
    echo "The demo runs already. Stop it with: make demo-down"
    exit 0
  fi
  trap 'code=$?; [ $code -eq 0 ] || { echo "demo: failed; stopping what was started. Logs stay in $STATE" >&2; down_processes; }' EXIT
  rm -rf "$STATE" # what an earlier demo that failed left behind
  mkdir -p "$STATE"

  title "Starting a control plane: etcd, kube-apiserver, controller-manager, scheduler, 3 simulated nodes"
  local seconds=$SECONDS
  "$STAND" up --dir "$PLANE" --control-plane full --nodes 3 >/dev/null
  KUBECTL=$("$STAND" build)/kubectl
  export KUBECONFIG=$PLANE/kubeconfig
  echo "ready after $((SECONDS - seconds)) s"

  title "Installing the operator, 2 replicas"
  local port
  port=$(free_port)
  install_operator "$port"
  operator_kubeconfig
  start_replicas "$port"
  echo "both replicas are ready: each serves a certificate that the API server has been told to trust"

  title "A SidecarSet: a sidecar, a native sidecar and a volume"
  # The API server may read a new CA bundle a moment after the replicas are ready.
  wait_for 120 "the webhooks" "$KUBECTL" apply --dry-run=server -f hack/demo/sidecarset.yaml
  run apply -f hack/demo/sidecarset.yaml
  run wait --for=condition=Ready sidecarset/demo --timeout=120s

  title "Two Deployments of the same app: one labelled for injection, one not"
  run apply -f hack/demo/deployments.yaml
  wait_for 120 "the Deployments" "$KUBECTL" wait --for=condition=Available deployment/labelled deployment/plain --timeout=1s
  wait_for 120 "the counters" counted
  run get sidecarset

  title "One of the labelled Pods: the app's container is as it was, the sidecars are beside it"
  show_pod app=labelled
  title "The Pod without the label: untouched"
  show_pod app=plain

  title "A new image for the running Pods: two Pods at a time, and only the sidecar is restarted"
  "$KUBECTL" get sidecarset demo --watch --output-watch-events=false >"$STATE/rollout.txt" &
  local watch=$!
  run patch sidecarset demo --type=json -p '[{"op":"replace","path":"/spec/containers/0/image","value":"example.com/log-agent:v2"}]'
  wait_for 120 "the rollout" rolled_out || { kill "$watch"; exit 1; }
  kill "$watch"
  printf '$ kubectl get sidecarset demo --watch\n'
  cat "$STATE/rollout.txt"
  run get pods -l app=labelled -o 'custom-columns=POD:.metadata.name,IMAGE OF THE SIDECAR:.spec.containers[?(@.name=="log-agent")].image,ITS RESTARTS:.status.containerStatuses[?(@.name=="log-agent")].restartCount,RESTARTS OF THE APP:.status.containerStatuses[?(@.name=="app")].restartCount'
  echo "(The nodes are simulated; test/node shows the same on a real kubelet.)"

  title "A SidecarSet that cannot work is refused; the message names the field and the remedy"
  if run apply -f hack/demo/broken.yaml; then
    echo "demo: the broken SidecarSet was accepted" >&2
    exit 1
  fi

  title "Yours to try"
  cat <<TXT
  export KUBECONFIG=$KUBECONFIG PATH=$(dirname "$KUBECTL"):\$PATH
  kubectl get pods --show-labels
  kubectl scale deployment/labelled --replicas 8 && kubectl get sidecarset --watch
  kubectl get sidecarset demo -o yaml
  kubectl run mine --image example.com/app:v1 --labels sidecars=demo && kubectl get pod mine -o yaml

Logs of the replicas are $STATE/replica-1.log and replica-2.log. Stop everything with:

  make demo-down
TXT
}

counted() {
  [ "$("$KUBECTL" get sidecarset demo -o jsonpath='{.status.matchedPods} {.status.updatedPods} {.status.readyPods}')" = "5 5 5" ]
}

rolled_out() {
  counted && [ "$("$KUBECTL" get sidecarset demo -o jsonpath='{.status.observedGeneration}')" = "$("$KUBECTL" get sidecarset demo -o jsonpath='{.metadata.generation}')" ]
}

show_pod() {
  local pod
  pod=$("$KUBECTL" get pods -l "$1" -o 'jsonpath={.items[0].metadata.name}')
  run get pod "$pod" -o 'custom-columns=INIT CONTAINERS:.spec.initContainers[*].name,CONTAINERS:.spec.containers[*].name,VOLUMES:.spec.volumes[*].name,INJECTED BY:.metadata.annotations.kruise\.io/sidecarset-injected-list'
}

down_processes() {
  stop replica-1 "${OPERATOR:-bin/sidecarset-operator}"
  stop replica-2 "${OPERATOR:-bin/sidecarset-operator}"
  stop splice "${SPLICE:-bin/splice}"
  "$STAND" down --dir "$PLANE" >/dev/null || true
}

down() {
  [ -d "$STATE" ] || { echo "The demo does not run."; exit 0; }
  down_processes
  rm -rf "$STATE"
  echo "The demo is gone."
}

case ${1:-} in
up) up ;;
down) down ;;
*) echo "usage: $0 up|down" >&2; exit 2 ;;
esac
