#!/usr/bin/env bash
# The demo tells a story: what a user sees of the operator. `demo.sh up` tells it on a control
# plane of its own (hack/demo/embedded.sh), or, with CLUSTER=existing, on the cluster of the
# current kubeconfig (hack/demo/existing.sh). `demo.sh down` removes what is left. Called by
# make, which sets STATE, STAND, OPERATOR and PLUGIN.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${STATE:?where the demo keeps its state}"

# What the demo leaves running must not hold files of the caller, for example a lock. Bash reads this script by 255.
for fd in /dev/fd/*; do
  fd=${fd##*/}
  [ "$fd" -le 2 ] || [ "$fd" -eq 255 ] || exec {fd}>&-
done

NAMESPACE=sidecarset-system # the operator's
PODS=sidecarset-demo        # the namespace of the Pods in the story
WATCH=                      # pid of the watch that the story has in the background

title() { printf '\n\033[1m%s\033[0m\n' "$*"; }
fail() {
  printf 'demo: %s\n' "$*" >&2
  exit 1
}
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

stop() { # stop NAME PROGRAM: the process that `start NAME` started, if it is still that one
  local file=$STATE/$1.pid program=$2 pid exe
  [ -f "$file" ] || return 0
  pid=$(<"$file")
  exe=$(readlink "/proc/$pid/exe" 2>/dev/null || true)
  if [ "${exe% (deleted)}" = "$(readlink -f "$program")" ]; then # deleted: the program was built again meanwhile
    kill "$pid" 2>/dev/null || true
    for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -9 "$pid" 2>/dev/null || true
  fi
  rm -f "$file"
}

stop_operator() { stop operator "${OPERATOR:-bin/sidecarset-operator}"; }

stop_watch() {
  [ -z "$WATCH" ] || kill "$WATCH" 2>/dev/null || true
  WATCH=
}

wait_for() { # wait_for WHAT COMMAND...: until COMMAND succeeds, for PATIENCE seconds
  local deadline=$((SECONDS + PATIENCE)) what=$1
  shift
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

# by_url ADDRESS: the whole install, except that API servers call webhooks by URL at
# that address, and one replica runs as a process.
by_url() { "$KUBECTL" kustomize test/overlays/demo | sed "s#https://127.0.0.1:9443/#https://$1/#"; }

install_operator() { # install_operator FILE
  "$KUBECTL" apply --server-side -f "$1" >/dev/null
  for _ in {1..12}; do # kubectl fails, and does not wait, while there is no condition at all
    "$KUBECTL" wait --for=condition=Established crd/sidecarsets.apps.kruise.io --timeout=10s >/dev/null 2>&1 && return
    sleep 0.2
  done
  "$KUBECTL" wait --for=condition=Established crd/sidecarsets.apps.kruise.io --timeout=1s >/dev/null
}

# operator_kubeconfig: the rights of the operator's ServiceAccount, no more.
operator_kubeconfig() {
  local file=$STATE/operator.kubeconfig user token
  token=$("$KUBECTL" -n "$NAMESPACE" create token sidecarset-operator --duration 24h)
  (umask 077 && "$KUBECTL" config view --raw --minify --flatten >"$file")
  user=$("$KUBECTL" --kubeconfig "$file" config view -o 'jsonpath={.users[0].name}')
  "$KUBECTL" --kubeconfig "$file" config delete-user "$user" >/dev/null
  "$KUBECTL" --kubeconfig "$file" config set-credentials operator --token "$token" >/dev/null
  "$KUBECTL" --kubeconfig "$file" config set-context --current --user operator >/dev/null
}

# start_operator HOST ADDRESS: one replica, as a process that API servers call at the address of this host. The address of its
# metrics is in METRICS.
start_operator() {
  local probe
  probe=$(free_port) METRICS=127.0.0.1:$(free_port)
  POD_NAME=demo start operator "$OPERATOR" --kubeconfig "$STATE/operator.kubeconfig" --namespace "$NAMESPACE" \
    --webhook-bind-address "$2" --webhook-san "$1" --pod-webhook-url "https://$2" \
    --health-probe-bind-address "127.0.0.1:$probe" --metrics-bind-address "$METRICS" --drain-grace 0s
  wait_for "the operator, which ends if no process of this machine can listen on $2" ready "$probe"
}

# story tells what a user sees. The manifests are in the directory MANIFESTS; their images are
# APP_IMAGE and others, and SIDECAR_IMAGE_V2 is the one that the sidecar is updated to.
story() {
  title "A SidecarSet: a sidecar, a native sidecar and a volume"
  # The API server may read a new CA bundle a moment after the operator is ready.
  wait_for "the webhooks" "$KUBECTL" apply --dry-run=server -f "$MANIFESTS/sidecarset.yaml"
  run apply -f "$MANIFESTS/sidecarset.yaml"
  run wait --for=condition=Ready sidecarset/demo --timeout=120s

  title "Two Deployments of the same app: one labelled for injection, one not"
  run create namespace "$PODS"
  run -n "$PODS" apply -f "$MANIFESTS/deployments.yaml"
  wait_for "the Deployments" "$KUBECTL" -n "$PODS" wait --for=condition=Available deployment/labelled deployment/plain --timeout=1s
  wait_for "the counters" counted
  run get sidecarset

  title "One of the labelled Pods: the app's container is as it was, the sidecars are beside it"
  show_pod app=labelled
  title "The Pod without the label: untouched"
  show_pod app=plain

  title "A new image for the running Pods: one Pod, then two at a time, and only the sidecar is restarted"
  "$KUBECTL" get sidecarset demo --watch --output-watch-events=false >"$STATE/rollout.txt" &
  WATCH=$!
  run patch sidecarset demo --type=json -p "[{\"op\":\"replace\",\"path\":\"/spec/containers/0/image\",\"value\":\"$SIDECAR_IMAGE_V2\"}]"
  wait_for "the rollout" rolled_out
  stop_watch
  printf '$ kubectl get sidecarset demo --watch\n'
  cat "$STATE/rollout.txt"
  run -n "$PODS" get pods -l app=labelled -o 'custom-columns=POD:.metadata.name,IMAGE OF THE SIDECAR:.spec.containers[?(@.name=="log-agent")].image,ITS RESTARTS:.status.containerStatuses[?(@.name=="log-agent")].restartCount,RESTARTS OF THE APP:.status.containerStatuses[?(@.name=="app")].restartCount'
  [ -z "${ABOUT_NODES:-}" ] || echo "$ABOUT_NODES"

  title "A SidecarSet that cannot work is refused; the message names the field and the remedy"
  if run apply -f "$MANIFESTS/broken.yaml"; then
    fail "the broken SidecarSet was accepted"
  fi

  PATH=$(dirname "$PLUGIN"):$PATH # kubectl finds its plugins there
  title "The plugin of kubectl says why a Pod has its sidecars, or lacks them"
  run sidecarset -n "$PODS" explain "$(pod app=labelled)"
  run sidecarset -n "$PODS" explain "$(pod app=plain)"

  title "And what applying a file would do to running Pods: here, the first image again"
  run sidecarset plan -f "$MANIFESTS/sidecarset.yaml" || [ $? -eq 2 ] # 2: something would change
}

counted() {
  [ "$("$KUBECTL" get sidecarset demo -o jsonpath='{.status.matchedPods} {.status.updatedPods} {.status.readyPods}')" = "5 5 5" ]
}

rolled_out() {
  counted && [ "$("$KUBECTL" get sidecarset demo -o jsonpath='{.status.observedGeneration}')" = "$("$KUBECTL" get sidecarset demo -o jsonpath='{.metadata.generation}')" ]
}

pod() { "$KUBECTL" -n "$PODS" get pods -l "$1" -o 'jsonpath={.items[0].metadata.name}'; }

show_pod() {
  run -n "$PODS" get pod "$(pod "$1")" -o 'custom-columns=INIT CONTAINERS:.spec.initContainers[*].name,CONTAINERS:.spec.containers[*].name,VOLUMES:.spec.volumes[*].name,INJECTED BY:.metadata.annotations.kruise\.io/sidecarset-injected-list'
}

yours_to_try() {
  title "Yours to try"
  cat <<TXT
  export KUBECONFIG=$KUBECONFIG PATH=$(dirname "$PLUGIN")${1:+:$1}:\$PATH
  kubectl get pods -n $PODS --show-labels
  kubectl scale -n $PODS deployment/labelled --replicas 8 && kubectl get sidecarset --watch
  kubectl sidecarset status demo --watch
  kubectl run -n $PODS mine --image $APP_IMAGE --labels sidecars=demo && kubectl get pod -n $PODS mine -o yaml
TXT
}

# Each file has the functions up and down.
case ${CLUSTER:-} in
'') source hack/demo/embedded.sh ;;
existing) source hack/demo/existing.sh ;;
*) fail "CLUSTER=$CLUSTER: set it to existing, for the cluster of your kubeconfig, or leave it out, for a control plane of the demo's own" ;;
esac
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
case ${1:-} in
up) up ;;
down) down ;;
*) fail "usage: $0 up|down" ;;
esac
