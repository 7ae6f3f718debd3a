package helm

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/action"
	"sigs.k8s.io/yaml"

	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/manifests"
)

// The chart and the profiles of config/ install the same.
func TestTheChartIsTheLayout(t *testing.T) {
	for layout, assignments := range map[string][]string{
		"default":                          nil,
		"overlays/hardened":                {"profile=hardened"},
		"overlays/single-node":             {"replicas.default=1"},
		"overlays/cert-manager":            {"certificates.mode=cert-manager"},
		"overlays/cert-manager-cainjector": {"certificates.mode=cainjector"},
	} {
		t.Run(layout, func(t *testing.T) {
			text, err := manifests.Build(filepath.Join(deploy.Root(), "config", layout))
			if err != nil {
				t.Fatal(err)
			}
			want := objects(t, text)
			got := objects(t, rendered(t, "sidecarset-system", append(assignments, "crd.keep=false")...))
			delete(want, "Namespace  sidecarset-system") // it is there before a chart is installed
			if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))); diff != "" {
				t.Fatalf("objects (-config +chart):\n%s", diff)
			}
			for name := range want {
				if diff := cmp.Diff(want[name], got[name]); diff != "" {
					t.Errorf("%s (-config +chart):\n%s", name, diff)
				}
			}
		})
	}
}

// A list that Helm has applied is Helm's. It owns no webhook, so it never removes one.
func TestShardsHaveNoWebhooks(t *testing.T) {
	shards := 0
	for name, object := range objects(t, rendered(t, "sidecarset-system")) {
		if strings.Contains(name, "sidecarset-pods-") {
			shards++
			if _, ok := object["webhooks"]; ok {
				t.Errorf("%s has the key webhooks", name)
			}
		}
	}
	if shards != 16 {
		t.Errorf("there are %d shards, want 16", shards)
	}
}

func TestTheNamespaceIsTheReleases(t *testing.T) {
	for _, assignments := range Switches {
		if text := rendered(t, "elsewhere", assignments...); strings.Contains(text, "sidecarset-system") {
			t.Errorf("%s: the namespace sidecarset-system is named in %s", assignments, text)
		}
	}
	if _, err := Template("default"); err == nil || !strings.Contains(err.Error(), "namespace of its own") {
		t.Errorf("in the namespace default: %v", err)
	}
}

// testdata/values.yaml says what values do.
func TestValues(t *testing.T) {
	text, err := os.ReadFile("testdata/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rows []struct {
		Set                                                string
		Lines, NoLines, Objects, NoObjects, Notes, NoNotes []string
		Refused                                            string
	}
	if err := yaml.UnmarshalStrict(text, &rows); err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		t.Run(row.Set, func(t *testing.T) {
			release, err := Template("sidecarset-system", row.Set)
			if row.Refused != "" {
				if err == nil || !strings.Contains(err.Error(), row.Refused) {
					t.Errorf("Helm says %v, want a refusal with %q", err, row.Refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			lines, all := "\n", objects(t, release.Manifest)
			for line := range strings.Lines(release.Manifest) {
				lines += strings.TrimSpace(line) + "\n"
			}
			expect := func(what string, wanted bool, parts []string, has func(string) bool) {
				for _, part := range parts {
					if has(part) != wanted {
						t.Errorf("%s: %q is there: %t", what, part, !wanted)
					}
				}
			}
			inLines := func(line string) bool { return strings.Contains(lines, "\n"+line+"\n") }
			inObjects := func(name string) bool { return all[name] != nil }
			inNotes := func(part string) bool { return strings.Contains(release.Info.Notes, part) }
			expect("lines", true, row.Lines, inLines)
			expect("lines", false, row.NoLines, inLines)
			expect("objects", true, row.Objects, inObjects)
			expect("objects", false, row.NoObjects, inObjects)
			expect("notes", true, row.Notes, inNotes)
			expect("notes", false, row.NoNotes, inNotes)
		})
	}
}

// The alerts of a release are those of the file, with the labels and the runbooks of the values.
func TestAlertsFollowTheValues(t *testing.T) {
	type groups struct {
		Groups []struct {
			Name, Interval string
			Rules          []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	text, err := os.ReadFile(filepath.Join(Directory(), "rules/sidecarset.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var want groups
	if err := yaml.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	for _, changed := range []bool{false, true} {
		assignments := "prometheusRule.enabled=true"
		if changed {
			assignments += ",prometheusRule.interval=1m,prometheusRule.alertLabels.team=a,prometheusRule.alertLabels.severity=none,prometheusRule.runbookURL=https://wiki.example.com/"
			want.Groups[0].Interval = "1m"
			for _, rule := range want.Groups[0].Rules {
				rule.Labels["team"] = "a" // and a severity stays
				rule.Annotations["runbook_url"] = "https://wiki.example.com/" + filepath.Base(rule.Annotations["runbook_url"])
			}
		}
		var got struct{ Spec groups }
		convert(t, objects(t, rendered(t, "sidecarset-system", assignments))["PrometheusRule sidecarset-system sidecarset"], &got)
		if diff := cmp.Diff(want, got.Spec); diff != "" {
			t.Errorf("%s (-file +chart):\n%s", assignments, diff)
		}
	}
}

func convert(t *testing.T, object map[string]any, into any) {
	t.Helper()
	text, err := yaml.Marshal(object)
	if err == nil {
		err = yaml.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Every member of every value is known, and misspelt ones are refused.
func TestTheSchemaRefusesWhatIsMisspelt(t *testing.T) {
	loaded, err := Load(Directory())
	if err != nil {
		t.Fatal(err)
	}
	refused := func(assignment string) {
		t.Helper()
		if _, err := Template("sidecarset-system", assignment); err == nil || !strings.Contains(err.Error(), "values don't meet the specifications of the schema") {
			t.Errorf("--set %s: %v", assignment, err)
		}
	}
	refused("replica=3")
	for name := range loaded.Values {
		if !slices.Contains(freeForm, name) || name == "resources" || name == "affinity" {
			refused(name + ".misspelt=x")
		}
	}
	for _, assignment := range []string{"ports.webhook=443", "extraObjects[0].kind=Secret", "volumes[0].emptyDir.medium=Memory", "profile=single", "replicas.default=0", "image.digest=v1", "extraArgs={zap-log-level=1}", "failurePolicy=fail", "excludedNamespaces={a b}"} {
		refused(assignment)
	}
}

// freeForm are the values whose members are the user's.
var freeForm = []string{"resources", "nodeSelector", "affinity", "labels", "annotations", "podLabels", "podAnnotations", "dashboards.labels",
	"dashboards.annotations", "serviceMonitor.labels", "prometheusRule.labels", "serviceAccount.annotations", "serviceMonitor.authorization",
	"prometheusRule.alertLabels"}

func TestLint(t *testing.T) {
	lint := action.NewLint()
	lint.Strict, lint.Namespace = true, "sidecarset-system"
	for _, assignments := range Switches {
		values, err := Values(assignments...)
		if err != nil {
			t.Fatal(err)
		}
		for _, message := range lint.Run([]string{Directory()}, values).Messages {
			t.Errorf("%s: %v", assignments, message)
		}
	}
}

func rendered(t *testing.T, namespace string, assignments ...string) string {
	t.Helper()
	release, err := Template(namespace, assignments...)
	if err != nil {
		t.Fatalf("rendering with %q: %v", assignments, err)
	}
	return release.Manifest
}

// objects parses manifests, by kind, namespace and name. It sets who manages an object to kustomize.
func objects(t *testing.T, text string) map[string]map[string]any {
	t.Helper()
	found := map[string]map[string]any{}
	for part := range strings.SplitSeq("\n"+text, "\n---") {
		var object map[string]any
		if err := yaml.UnmarshalStrict([]byte(part), &object); err != nil {
			t.Fatalf("%v in %s", err, part)
		}
		if len(object) == 0 {
			continue
		}
		metadata := object["metadata"].(map[string]any)
		namespace, _ := metadata["namespace"].(string)
		name := object["kind"].(string) + " " + namespace + " " + metadata["name"].(string)
		if found[name] != nil {
			t.Errorf("%s is rendered twice", name)
		}
		found[name] = object
		managed(metadata)
		if spec, _ := object["spec"].(map[string]any); object["kind"] == "Deployment" {
			managed(spec["template"].(map[string]any)["metadata"].(map[string]any))
		}
	}
	return found
}

func managed(metadata map[string]any) {
	if labels, _ := metadata["labels"].(map[string]any); labels["app.kubernetes.io/managed-by"] == "Helm" {
		labels["app.kubernetes.io/managed-by"] = "kustomize"
	}
}
