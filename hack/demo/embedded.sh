# shellcheck shell=bash disable=SC2034 # hack/demo.sh uses the variables
# The demo on a control plane of its own, on loopback. It is left running. hack/demo.sh
# has the story.
: "${STAND:?the launcher of the control plane}"
PLANE=$STATE/plane
PATIENCE=120
MANIFESTS=hack/demo
APP_IMAGE=example.com/app:v1
SIDECAR_IMAGE_V2=example.com/log-agent:v2
ABOUT_NODES="(The nodes are simulated; test/node shows the same on a real kubelet.)"

up() {
  : "${OPERATOR:?the operator}" "${SPLICE:?the TCP splice}"
  if [ -f "$STATE/replica-1.pid" ]; then
    echo "The demo runs already. Stop it with: make demo-down"
    exit 0
  fi
  trap finish EXIT
  rm -rf "$STATE" # what an earlier demo that failed left behind
  mkdir -p "$STATE"

  title "Starting a control plane: etcd, kube-apiserver, controller-manager, scheduler, 3 simulated nodes"
  local seconds=$SECONDS address
  "$STAND" up --dir "$PLANE" --control-plane full --nodes 3 >/dev/null
  KUBECTL=$("$STAND" build)/kubectl
  export KUBECONFIG=$PLANE/kubeconfig
  echo "ready after $((SECONDS - seconds)) s"

  title "Installing the operator, 2 replicas"
  address=127.0.0.1:$(free_port)
  by_url "$address" >"$STATE/operator.yaml"
  install_operator "$STATE/operator.yaml"
  operator_kubeconfig
  start_replicas 127.0.0.1 "$address"
  echo "both replicas are ready: each serves a certificate that the API server has been told to trust"

  story
  yours_to_try "$(dirname "$KUBECTL")"
  cat <<TXT

Logs of the replicas are $STATE/replica-1.log and replica-2.log. Stop everything with:

  make demo-down
TXT
}

finish() {
  local code=$?
  trap '' HUP INT TERM
  stop_watch
  if [ "$code" -ne 0 ]; then
    echo "demo: failed; stopping what was started. Logs stay in $STATE" >&2
    stop_all
  fi
}

stop_all() {
  stop_replicas
  "$STAND" down --dir "$PLANE" >/dev/null || true
}

down() {
  [ -d "$STATE" ] || { echo "The demo does not run."; exit 0; }
  stop_all
  rm -rf "$STATE"
  echo "The demo is gone."
}
