package cli

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// versionReport is what version prints. What was not asked is empty.
type versionReport struct {
	Plugin     string `json:"plugin"`
	Kubernetes string `json:"kubernetes,omitempty"`
	// Operator has the number of the operator's Pods by their versions.
	Operator map[string]int `json:"operator,omitempty"`
	// Warning says why the versions do not fit, or are not known.
	Warning string `json:"warning,omitempty"`
}

func (a *app) versions() *cobra.Command {
	var only bool
	var output string
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of the plugin, the operator and Kubernetes",
		Long: `Print the versions of the plugin, the operator and Kubernetes, and whether plugin and operator fit.

The version of the operator is read from the logs of its Pods: the tag of an image may say anything.
Without a cluster, the plugin's own version is printed.`,
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			report := &versionReport{Plugin: a.version}
			if !only {
				ctx, cancel := context.WithTimeout(c.Context(), 10*time.Second)
				defer cancel()
				if err := a.askVersions(ctx, report); err != nil {
					report.Warning = "not known: " + err.Error()
				}
			}
			if output != "" {
				return a.printAs(output, report)
			}
			fmt.Fprintf(a.Out, "Plugin:      %s\n", report.Plugin)
			if report.Kubernetes != "" {
				fmt.Fprintf(a.Out, "Kubernetes:  %s\n", report.Kubernetes)
			}
			for _, version := range slices.Sorted(maps.Keys(report.Operator)) {
				fmt.Fprintf(a.Out, "Operator:    %s, Pods: %d\n", version, report.Operator[version])
			}
			if report.Warning != "" {
				fmt.Fprintf(a.Out, "Warning:     %s\n", report.Warning)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&only, "client", false, "print the version of the plugin only, and ask no cluster")
	c.Flags().StringVarP(&output, "output", "o", "", "`format`: json or yaml")
	return c
}

var versionInLog = regexp.MustCompile(`"Starting".*"version":"([^"]+)"`) // as cmd/operator logs it first

// askVersions adds what the cluster says.
func (a *app) askVersions(ctx context.Context, report *versionReport) error {
	_, config, err := a.client()
	if err != nil {
		return err
	}
	config.Timeout = 10 * time.Second
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	server, err := clients.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("asking the API server for its version: %w", err)
	}
	report.Kubernetes = server.GitVersion
	pods := clients.CoreV1().Pods(a.operatorNamespace)
	list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=sidecarset-operator"})
	if err != nil {
		return fmt.Errorf("listing the operator's Pods: %w", err)
	}
	report.Operator = map[string]int{}
	for _, pod := range list.Items {
		log, err := pods.GetLogs(pod.Name, &corev1.PodLogOptions{Container: "operator", LimitBytes: new(int64(8 << 10))}).DoRaw(ctx)
		if err != nil {
			return fmt.Errorf("reading the log of Pod %s/%s: %w", a.operatorNamespace, pod.Name, err)
		}
		found := versionInLog.FindSubmatch(log)
		if found == nil {
			return fmt.Errorf("the log of Pod %s/%s no longer has its first line, which names the version", a.operatorNamespace, pod.Name)
		}
		report.Operator[string(found[1])]++
	}
	switch {
	case len(report.Operator) == 0:
		return fmt.Errorf("namespace %s has no Pod of the operator; name its namespace with --operator-namespace", a.operatorNamespace)
	case len(report.Operator) > 1 || report.Operator[report.Plugin] == 0:
		report.Warning = "what the plugin predicts may differ from what the operator does: use the plugin of the operator's version"
	}
	return nil
}
