# shellcheck shell=bash disable=SC2034 # hack/demo.sh uses the variables
# The demo on the cluster of the current kubeconfig. It asks before it writes, and begins only if
# none of its objects is there. It removes what it made, also after a failure or Ctrl-C; with
# KEEP=1, `demo.sh down` does. hack/demo.sh has the story.
#
# The operator runs in the cluster, from a pushed image (IMAGE), or as a process on this machine,
# at an address of it that API servers reach (WEBHOOK_HOST, and WEBHOOK_PORT if a firewall
# admits one port only).
STATE=$STATE-existing
KUBECTL=${KUBECTL:-kubectl}
PATIENCE=300 # real nodes pull images
MANIFESTS=$STATE
APP_IMAGE=${APP_IMAGE:-registry.k8s.io/pause:3.10}
SIDECAR_IMAGE_V1=${SIDECAR_IMAGE_V1:-registry.k8s.io/pause:3.9}
SIDECAR_IMAGE_V2=${SIDECAR_IMAGE_V2:-registry.k8s.io/pause:3.10}
case ${IMAGE:=} in registry.invalid/*) IMAGE= ;; esac # the name in the manifests: nobody has set one

up() {
  [ ! -e "$STATE/made" ] || fail "the demo is on a cluster already; remove it with: make demo-down CLUSTER=existing"
  [ -n "$IMAGE${WEBHOOK_HOST:-}" ] || fail "where should the operator run? Choose one:
  in the cluster:    make push IMAGE=registry.example.com/sidecarset-operator:v1, then
                     make demo CLUSTER=existing IMAGE=registry.example.com/sidecarset-operator:v1
  on this machine:   make demo CLUSTER=existing WEBHOOK_HOST=<an address of this machine that API servers reach>"
  trap finish EXIT
  connect
  write_manifests
  refuse_what_is_there
  ask
  refuse_what_is_there # the answer may have taken long

  touch "$STATE/made"
  title "Installing the operator"
  install_operator "$STATE/operator.yaml"
  if [ -n "$IMAGE" ]; then
    run -n "$NAMESPACE" rollout status deployment/sidecarset-operator --timeout="${PATIENCE}s"
  else
    operator_kubeconfig
    start_operator "$WEBHOOK_HOST" "$ADDRESS"
    echo "it is ready"
  fi
  story
}

# connect copies the current context: the demo stays on this cluster if the user chooses another
# one meanwhile.
connect() {
  local answer
  command -v "$KUBECTL" >/dev/null || fail "there is no program $KUBECTL: install kubectl, or set KUBECTL to its path"
  CONTEXT=$("$KUBECTL" config current-context 2>&1) ||
    fail "kubectl says: $CONTEXT. Set KUBECONFIG to the file of a cluster, or choose a cluster with: kubectl config use-context NAME"
  rm -rf "$STATE" # what an earlier demo that failed left behind
  mkdir -p "$STATE"
  (umask 077 && "$KUBECTL" config view --raw --minify --flatten >"$STATE/kubeconfig")
  export KUBECONFIG=$STATE/kubeconfig
  SERVER=$("$KUBECTL" config view -o 'jsonpath={.clusters[0].cluster.server}')
  answer=$("$KUBECTL" get --raw /version --request-timeout=15s 2>&1) ||
    fail "the cluster of context $CONTEXT, $SERVER, does not answer: $answer
Choose another cluster with KUBECONFIG or kubectl config use-context, or see why kubectl version fails"
}

write_manifests() {
  local host=${WEBHOOK_HOST:-} file
  if [ -n "$IMAGE" ]; then
    WHERE="a Deployment with 2 replicas of $IMAGE"
    "$KUBECTL" kustomize config/default | sed "s|image: registry.invalid/sidecarset-operator:.*|image: $IMAGE|" >"$STATE/operator.yaml"
  else
    : "${OPERATOR:?the operator}"
    case $host in *:*) host=[$host] ;; esac # IPv6
    ADDRESS=$host:${WEBHOOK_PORT:-$(free_port)}
    WHERE="a process on this machine, which API servers call at https://$ADDRESS"
    by_url "$ADDRESS" >"$STATE/operator.yaml"
  fi
  for file in sidecarset deployments broken; do
    sed "s|example.com/app:v1|$APP_IMAGE|; s|example.com/[a-z-]*:v1|$SIDECAR_IMAGE_V1|" "hack/demo/$file.yaml" >"$STATE/$file.yaml"
  done
}

# present: which objects of the demo the cluster has.
present() {
  "$KUBECTL" get -f "$STATE/operator.yaml" --ignore-not-found -o name &&
    "$KUBECTL" get namespace "$PODS" --ignore-not-found -o name
}

refuse_what_is_there() {
  local found
  found=$(present)
  [ -z "$found" ] || fail "the cluster of context $CONTEXT has objects of these names already:
$found
OpenKruise, this operator or another demo runs there. The demo changes and deletes nothing that it did not make.
Choose another cluster with KUBECONFIG or kubectl config use-context, or remove these objects yourself"
}

ask() {
  local answer=
  title "What the demo makes, and removes at the end"
  cat <<TXT
Context:    $CONTEXT
API server: $SERVER
Operator:   $WHERE
SidecarSet: demo, for the namespace $PODS only
Pods:       6, of two Deployments in the namespace $PODS, with the images $APP_IMAGE, $SIDECAR_IMAGE_V1 and $SIDECAR_IMAGE_V2
Objects of the operator, besides those that it makes in its namespace:
TXT
  "$KUBECTL" create --dry-run=client --validate=false -f "$STATE/operator.yaml" \
    -o go-template='{{.kind}} {{with .metadata.namespace}}{{.}}/{{end}}{{.metadata.name}}{{"\n"}}' |
    awk '{names[$1] = names[$1] " " $2} END {for (kind in names) print "  " kind ":" names[kind]}' | sort
  [ "${YES:-}" != 1 ] || return 0
  printf '\nType yes to go on: '
  read -r answer || { read -r answer </dev/tty; } 2>/dev/null || true
  [ "$answer" = yes ] || fail "the answer was not yes: nothing was written. YES=1 skips the question"
}

finish() {
  local code=$?
  trap - EXIT
  trap '' HUP INT TERM # a second Ctrl-C does not leave half of it behind
  stop_watch
  if [ ! -e "$STATE/made" ]; then
    rm -rf "$STATE"
  elif [ "${KEEP:-}" = 1 ]; then
    yours_to_try
    printf '\ndocs/monitoring.md says how a Prometheus reads the metrics.\nRemove everything with:\n\n  make demo-down CLUSTER=existing\n'
  else
    [ "$code" -eq 0 ] || save_logs
    remove "$code" || code=1
  fi
  exit "$code"
}

save_logs() {
  echo "demo: ended early; removing what was made. Logs stay in $STATE" >&2
  [ -z "$IMAGE" ] || {
    "$KUBECTL" -n "$NAMESPACE" describe pods
    "$KUBECTL" -n "$NAMESPACE" logs -l app.kubernetes.io/name=sidecarset-operator --prefix --tail=-1
  } >"$STATE/operator.log" 2>&1 || true
}

# remove CODE: it keeps logs unless CODE is 0.
remove() {
  title "Removing what the demo made"
  if ! delete_all; then
    echo "demo: not everything is gone; try again with: make demo-down CLUSTER=existing" >&2
    return 1
  fi
  rm -f "$STATE"/*kubeconfig "$STATE"/*.yaml "$STATE/made"
  [ "$1" -ne 0 ] || rm -rf "$STATE"
  echo "Nothing of the demo is left on the cluster."
}

# delete_all deletes SidecarSets and Pods first, while the operator runs; then the operator.
delete_all() {
  local left
  { [ -z "$("$KUBECTL" get crd sidecarsets.apps.kruise.io --ignore-not-found -o name)" ] ||
    run delete sidecarsets --all --timeout=120s; } &&
    run delete namespace "$PODS" --ignore-not-found --timeout=180s &&
    run delete -f "$STATE/operator.yaml" --ignore-not-found --timeout=180s | awk 'NR == 1; END {print NR - 1 " objects deleted"}' &&
    stop_operator &&
    "$KUBECTL" -n default delete events --field-selector reportingComponent=sidecarset-operator >/dev/null &&
    left=$(present) && [ -z "$left" ]
}

down() {
  [ -e "$STATE/made" ] || { echo "The demo is on no cluster that this checkout knows of."; exit 0; }
  trap '' HUP INT TERM
  export KUBECONFIG=$STATE/kubeconfig
  remove 0
}
