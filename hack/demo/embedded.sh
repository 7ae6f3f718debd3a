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
  : "${OPERATOR:?the operator}"
  if [ -f "$STATE/operator.pid" ]; then
    echo "The demo runs already. Stop it with: make demo-down"
    exit 0
  fi
  trap finish EXIT
  rm -rf "$STATE" # what an earlier demo that failed left behind
  mkdir -p "$STATE"

  title "Starting a control plane: etcd, kube-apiserver, controller-manager, scheduler, 3 simulated nodes"
  local seconds=$SECONDS address
  KUBECTL=$("$STAND" build)/kubectl
  start stand "$STAND" run --dir "$PLANE" --nodes 3
  wait_for "the control plane" grep '^{' "$STATE/stand.log"
  export KUBECONFIG=$PLANE/kubeconfig
  echo "ready after $((SECONDS - seconds)) s"

  title "Installing the operator"
  address=127.0.0.1:$(free_port)
  by_url "$address" >"$STATE/operator.yaml"
  install_operator "$STATE/operator.yaml"
  operator_kubeconfig
  start_operator 127.0.0.1 "$address"
  echo "it is ready: it serves a certificate that the API server has been told to trust"

  story
  scraping
  yours_to_try "$(dirname "$KUBECTL")"
  cat <<TXT

The metrics, and a Prometheus of yours that reads them, with the alerts (docs/monitoring.md has more):

  curl --cacert $STATE/ca.crt -H @$STATE/scraper.header https://$METRICS/metrics
  prometheus --config.file $STATE/prometheus.yml --storage.tsdb.path $STATE/prometheus --web.listen-address 127.0.0.1:9090

The log of the operator is $STATE/operator.log. Stop everything with:

  make demo-down
TXT
}

# scraping writes what a client of the metrics needs: a token with the right to read them, the CA
# of the certificates, and a configuration of Prometheus.
scraping() {
  local token
  "$KUBECTL" -n "$PODS" create serviceaccount scraper >/dev/null
  "$KUBECTL" create clusterrolebinding sidecarset-demo-scraper --clusterrole=sidecarset-metrics-reader --serviceaccount="$PODS:scraper" >/dev/null
  token=$("$KUBECTL" -n "$PODS" create token scraper --duration 24h)
  "$KUBECTL" get validatingwebhookconfiguration sidecarset-validating-webhook -o 'jsonpath={.webhooks[0].clientConfig.caBundle}' | base64 -d >"$STATE/ca.crt"
  (umask 077 && echo "$token" >"$STATE/scraper.token" && echo "Authorization: Bearer $token" >"$STATE/scraper.header")
  cat >"$STATE/prometheus.yml" <<YAML
global: {scrape_interval: 5s, evaluation_interval: 5s}
rule_files: [$PWD/charts/sidecarset/rules/sidecarset.yaml]
scrape_configs:
- job_name: sidecarset-metrics
  scheme: https
  authorization: {credentials_file: $STATE/scraper.token}
  tls_config: {ca_file: $STATE/ca.crt, server_name: sidecarset-webhook.$NAMESPACE.svc}
  static_configs: [{targets: ['$METRICS']}]
YAML
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
  stop_operator
  stop stand "$STAND"
}

down() {
  [ -d "$STATE" ] || { echo "The demo does not run."; exit 0; }
  stop_all
  rm -rf "$STATE"
  echo "The demo is gone."
}
