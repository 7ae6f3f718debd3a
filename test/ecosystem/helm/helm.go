// Package helm renders and installs the chart with Helm's own code. Only tests import it.
package helm

import (
	"context"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/loader"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/kube"
	release "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/strvals"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/sidecarset/operator/test/deploy"
)

// Release is the name of the release in tests, and the instance in the labels of config/.
const Release = "sidecarset"

// Directory is the chart of this checkout.
func Directory() string { return filepath.Join(deploy.Root(), "charts/sidecarset") }

// Switches are assignments of values that render every branch of every template.
var Switches = [][]string{
	{"profile=default"},
	{"profile=hardened", "replicas.controller=1"},
	{"replicas.default=1", "criticalPodsQuota=false", "priorityClassName="},
	{"image.repository=example.com/operator", "image.digest=sha256:" + strings.Repeat("0", 64), "image.pullPolicy=Always", "imagePullSecrets[0].name=pull"},
	{"resources.limits.memory=512Mi", "resources.limits.cpu=2"},
	{"resources=null"},
	{"nodeSelector.pool=system", "tolerations[0].key=system", "tolerations[0].operator=Exists",
		"affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].key=pool",
		"affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].operator=Exists"},
	{"hostNetwork=true", "ports.webhook=19443", "ports.metrics=18443", "ports.probes=18081"},
	{"extraArgs={--client-ca-file=/ca/ca.crt}", "volumes[0].name=ca", "volumes[0].configMap.name=ca", "volumeMounts[0].name=ca", "volumeMounts[0].mountPath=/ca"},
	{"serviceAccount.annotations.role=operator", "profile=hardened"},
	{"extraObjects[0].apiVersion=v1", "extraObjects[0].kind=ConfigMap", "extraObjects[0].metadata.name=extra", "extraObjects[0].metadata.namespace=default"},
	{"labels.team=platform", "annotations.team=platform", "podLabels.team=platform", "podAnnotations.team=platform"},
	{"certificates.mode=cert-manager"},
	{"certificates.mode=cainjector", "profile=hardened"},
	{"certificates.mode=files", "certificates.secretName=serving"},
	{"excludedNamespaces={kube-system,calico-system}", "requesterCheck=enforce", "failurePolicy=Ignore", "extraArgs={--zap-log-level=1}"},
	{"required.enabled=true", "excludedNamespaces={kube-system,calico-system}", "labels.team=platform"},
	{"crd.create=false"},
	{"networkPolicy.enabled=false", "flowSchemas=false"},
	{"networkPolicy.metricsFrom=null", "profile=hardened"},
	{"metrics.readers[0].namespace=monitoring", "metrics.readers[0].name=prometheus"},
	{"serviceMonitor.enabled=true", "serviceMonitor.labels.release=prometheus", "serviceMonitor.interval=30s",
		"prometheusRule.enabled=true", "prometheusRule.labels.release=prometheus"},
	{"serviceMonitor.enabled=true", "certificates.mode=cert-manager", "annotations.team=platform", "serviceMonitor.scrapeTimeout=10s",
		"serviceMonitor.authorization.credentials.name=token", "serviceMonitor.authorization.credentials.key=token",
		"serviceMonitor.relabelings[0].action=labeldrop", "serviceMonitor.relabelings[0].regex=pod",
		"serviceMonitor.metricRelabelings[0].action=drop", "serviceMonitor.metricRelabelings[0].regex=go_.*", "serviceMonitor.metricRelabelings[0].sourceLabels={__name__}"},
	{"prometheusRule.enabled=true", "prometheusRule.interval=1m", "prometheusRule.alertLabels.team=platform", "prometheusRule.runbookURL=https://wiki.example.com/sidecarset/"},
	{"dashboards.enabled=true", "dashboards.annotations.folder=sidecars"},
}

// Load reads a chart from a directory.
func Load(directory string) (*chart.Chart, error) {
	loaded, err := loader.Load(directory)
	if err != nil {
		return nil, err
	}
	return loaded.(*chart.Chart), nil
}

// Values reads assignments as --set takes them.
func Values(assignments ...string) (map[string]any, error) {
	return strvals.Parse(strings.Join(assignments, ","))
}

// Template does what helm template does, with the values of --set, and returns the release. It has Manifest and the notes.
func Template(namespace string, assignments ...string) (*release.Release, error) {
	values, err := Values(assignments...)
	if err != nil {
		return nil, err
	}
	return template(namespace, values)
}

func template(namespace string, values map[string]any) (*release.Release, error) {
	install := action.NewInstall(configuration())
	install.DryRunStrategy = action.DryRunClient
	install.KubeVersion = &common.KubeVersion{Version: "v1.37.2", Major: "1", Minor: "37"} // without a cluster, Helm assumes an old one
	return run(install, Directory(), Release, namespace, values)
}

func run(install *action.Install, directory, name, namespace string, values map[string]any) (*release.Release, error) {
	install.ReleaseName, install.Namespace = name, namespace
	loaded, err := Load(directory)
	if err != nil {
		return nil, err
	}
	made, err := install.Run(loaded, values)
	if made == nil {
		return nil, err
	}
	return made.(*release.Release), err
}

func configuration() *action.Configuration {
	return action.NewConfiguration(action.ConfigurationSetLogger(slog.NewTextHandler(io.Discard, nil)))
}

// Client is Helm on a cluster, in one namespace.
type Client struct {
	Namespace string

	configuration *action.Configuration
}

// NewClient returns Helm with a kubeconfig.
func NewClient(kubeconfig, namespace string) (*Client, error) {
	flags := genericclioptions.NewConfigFlags(false)
	flags.KubeConfig, flags.Namespace = &kubeconfig, &namespace
	c := configuration()
	return &Client{namespace, c}, c.Init(flags, namespace, "secret")
}

// Install does what helm install --create-namespace does. With change, a test sets other flags of the command.
func (c *Client) Install(name, directory string, change func(*action.Install), assignments ...string) (*release.Release, error) {
	install := action.NewInstall(c.configuration)
	install.CreateNamespace, install.WaitStrategy, install.Timeout = true, kube.HookOnlyStrategy, 5*time.Minute
	if change != nil {
		change(install)
	}
	values, err := Values(assignments...)
	if err != nil {
		return nil, err
	}
	return run(install, directory, name, c.Namespace, values)
}

// Upgrade does what helm upgrade does.
func (c *Client) Upgrade(ctx context.Context, name, directory string, change func(*action.Upgrade), assignments ...string) error {
	upgrade := action.NewUpgrade(c.configuration)
	upgrade.Namespace, upgrade.WaitStrategy, upgrade.Timeout = c.Namespace, kube.HookOnlyStrategy, 5*time.Minute
	if change != nil {
		change(upgrade)
	}
	loaded, err := Load(directory)
	if err != nil {
		return err
	}
	values, err := Values(assignments...)
	if err != nil {
		return err
	}
	_, err = upgrade.RunWithContext(ctx, name, loaded, values)
	return err
}

// Rollback does what helm rollback does: to the revision before.
func (c *Client) Rollback(name string) error {
	rollback := action.NewRollback(c.configuration)
	rollback.WaitStrategy, rollback.Timeout = kube.HookOnlyStrategy, 5*time.Minute
	return rollback.Run(name)
}

// Uninstall does what helm uninstall does.
func (c *Client) Uninstall(name string) error {
	uninstall := action.NewUninstall(c.configuration)
	uninstall.WaitStrategy, uninstall.Timeout = kube.HookOnlyStrategy, 5*time.Minute
	_, err := uninstall.Run(name)
	return err
}
