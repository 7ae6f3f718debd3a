package clustertest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sidecarset/operator/test/testkit"
)

// Every verb has an answer about the samples, which people try first.
func TestEveryVerbOverTheSamples(t *testing.T) {
	t.Parallel()
	namespace := selectedNamespace(t)
	dir := t.TempDir()
	sample := func(path string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join("../../../config/samples/workloads", path))
		if err != nil {
			t.Fatal(err)
		}
		manifest := strings.ReplaceAll(string(text), "namespace: shop", "namespace: "+namespace)
		if strings.HasPrefix(path, "sidecarsets/") { // other tests have Pods with the same labels
			name := strings.TrimSuffix(filepath.Base(path), ".yaml")
			manifest = strings.Replace(manifest, "name: "+name+"\n", "name: "+name+"-"+namespace+"\n", 1)
			manifest = strings.Replace(manifest, "spec:\n", "spec:\n  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: "+namespace+"}}\n", 1)
		}
		file := filepath.Join(dir, filepath.Base(path))
		if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	logAgent, secrets, exporter := "log-agent-"+namespace, "secrets-agent-"+namespace, "exporter-"+namespace
	sets := []string{sample("sidecarsets/log-agent.yaml"), sample("sidecarsets/secrets-agent.yaml"), sample("sidecarsets/exporter.yaml")}
	web, report, database := sample("web.yaml"), sample("report.yaml"), sample("database.yaml")

	wants(t, []string{"lint", "-f", strings.Join(sets, ",")}, "advice: SidecarSet "+logAgent)
	for i, name := range []string{logAgent, secrets, exporter} {
		text, err := os.ReadFile(sets[i])
		if err != nil {
			t.Fatal(err)
		}
		apply(t, namespace, string(text))
		deleteLater(t, name)
		testkit.AwaitReady(t, api, name)
	}
	wants(t, []string{"inject", "-f", web}, "name: "+"exporter", "name: log-agent")
	if out, code := kubectl(t, "diff", "-f", report); code != 2 || !strings.Contains(out, "name: secrets-agent") {
		t.Errorf("diff: exit code %d:\n%s", code, out)
	}
	testkit.Kubectl(t, cluster, "", "apply", "-f", web, "-f", report, "-f", database)
	awaitPods(t, logAgent, 2)
	wants(t, []string{"-n", namespace, "explain", "deploy/web"}, logAgent+": injected", exporter+": injected", secrets+": does not select it")
	wants(t, []string{"-n", namespace, "explain", "job/report"}, secrets+": injected")
	wants(t, []string{"-n", namespace, "explain", "sts/database"}, exporter+": injected")

	text, err := os.ReadFile(sets[2])
	if err != nil {
		t.Fatal(err)
	}
	newer := filepath.Join(dir, "newer.yaml")
	if err := os.WriteFile(newer, []byte(strings.Replace(string(text), "busybox:1.36", "busybox:1.37", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := kubectl(t, "plan", "-f", newer); code != 2 || !strings.Contains(out, "in place") || !strings.Contains(out, "busybox:1.37") {
		t.Errorf("plan: exit code %d:\n%s", code, out)
	}
	wants(t, []string{"status", logAgent}, "2 of 2 Pods updated")
	wants(t, []string{"rollout", "status", logAgent}, "successfully rolled out")
	wants(t, []string{"rollout", "history", exporter}, "busybox:1.36")
	wants(t, []string{"rollout", "pause", exporter}, exporter+" paused")
	wants(t, []string{"rollout", "resume", exporter}, exporter+" resumed")
	wants(t, []string{"set", "image", exporter, "exporter=busybox:1.37", "--dry-run=server"}, exporter+" image updated")
	if out, code := kubectl(t, "doctor", "-o", "short"); code != 0 && code != 2 || out == "" {
		t.Errorf("doctor: exit code %d:\n%s", code, out)
	}
	if out, code := kubectl(t, "migrate"); code != 0 || !strings.Contains(out, "How to move") {
		t.Errorf("migrate: exit code %d:\n%s", code, out)
	}
}
