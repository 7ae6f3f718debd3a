package clustertest

import (
	"context"
	"flag"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/transcript"
	"github.com/sidecarset/operator/test/testkit"
)

// updating reports whether -update asks to write the output of the plugin into docs/plugin.md. The flag is that of fixtures.
func updating() bool { return flag.Lookup("update").Value.String() == "true" }

// What the document shows on a cluster is what the plugin prints. Package cli checks the rest.
func TestDocumentShowsWhatThePluginPrints(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	samples := filepath.Join(root, "docs/plugin")
	t.Cleanup(func() {
		if _, err := cluster.Kubectl(context.WithoutCancel(t.Context()), "", "delete", "-f", samples, "--ignore-not-found", "--wait=false"); err != nil {
			t.Error(err)
		}
	})
	testkit.Kubectl(t, cluster, "", "apply", "-f", filepath.Join(samples, "sidecarsets.yaml"))
	testkit.AwaitServiceAccount(t, api, "shop")
	testkit.AwaitReady(t, api, "log-agent")
	testkit.Kubectl(t, cluster, "", "apply", "-f", filepath.Join(samples, "web.yaml"))
	awaitPods(t, "log-agent", 3)

	commands := transcript.Check(t, filepath.Join(root, "docs/plugin.md"), "cluster", updating(), func(args []string) (string, bool) {
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "docs/plugin", samples)
		}
		if args[0] != "sidecarset" {
			return steady(testkit.Kubectl(t, cluster, "", args...)), true
		}
		if args[1] == "status" {
			testkit.Await(t, api, "log-agent", "the blocked Pods", func(set *appsv1beta1.SidecarSet) error {
				if blocked := set.Status.BlockedPods; len(blocked) != 1 || blocked[0].Pods != 3 {
					return fmt.Errorf("%v, want 3", blocked)
				}
				return nil
			})
			testkit.AwaitReady(t, api, "log-agent")
		}
		stdout, stderr, _ := kubectlWith(t, "", args[1:]...)
		if args[1] == "doctor" {
			stderr = "" // its progress
		}
		return steady(stdout + stderr), true
	})
	if commands == 0 {
		t.Error("the document shows no command on a cluster")
	}
}

var (
	podName  = regexp.MustCompile(`\bweb-[a-z0-9]{6,10}-[a-z0-9]{5}\b`)
	ageTitle = regexp.MustCompile(`AGE +IMAGES`)
	ageValue = regexp.MustCompile(`\d+[smh]\S* +(\S+=)`)
	// What doctor finds about other tests.
	finding = regexp.MustCompile(`(?m)^(ERROR|WARNING|SKIP|ok) .*\n( +.*\n)*|^errors: .*\n`)
	waiting = regexp.MustCompile(`(?m)^Waiting for .*\n`)
)

// steady replaces what differs from run to run: names of Pods, ages, and the steps of a rollout.
func steady(text string) string {
	names := map[string]string{}
	text = podName.ReplaceAllStringFunc(text, func(name string) string {
		if names[name] == "" {
			names[name] = fmt.Sprintf("web-5d9c7b6f4-x2k%dq", len(names)+1)
		}
		return names[name]
	})
	text = ageTitle.ReplaceAllString(text, "AGE   IMAGES")
	text = ageValue.ReplaceAllString(text, "60s   $1")
	text = finding.ReplaceAllStringFunc(text, func(found string) string {
		if strings.Contains(found, "SidecarSet log-agent:") {
			return found
		}
		return ""
	})
	return waiting.ReplaceAllString(text, "")
}
