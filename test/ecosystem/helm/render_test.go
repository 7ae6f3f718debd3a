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
	corev1 "k8s.io/api/core/v1"
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

// The CRD stays if the chart goes.
func TestTheDefinitionIsKept(t *testing.T) {
	const name = "CustomResourceDefinition  sidecarsets.apps.kruise.io"
	for assignment, want := range map[string]any{"crd.keep=true": "keep", "crd.keep=false": nil} {
		metadata := objects(t, rendered(t, "sidecarset-system", assignment))[name]["metadata"].(map[string]any)
		if got := metadata["annotations"].(map[string]any)["helm.sh/resource-policy"]; got != want {
			t.Errorf("%s: the policy is %v, want %v", assignment, got, want)
		}
	}
	if _, found := objects(t, rendered(t, "sidecarset-system", "crd.create=false"))[name]; found {
		t.Error("it is rendered although crd.create is false")
	}
}

func TestTheMemoryLimitOfGoFollows(t *testing.T) {
	for assignments, want := range map[string]string{
		"resources.limits.memory=2Gi":                      "1792MiB",
		"resources.limits.memory=512Mi":                    "448MiB",
		"resources.limits.memory=1e9,goMemoryLimit=800MiB": "800MiB",
		"resources.limits=null":                            "",
	} {
		var got string
		container := pod(t, assignments).Containers[0]
		for _, variable := range container.Env {
			if variable.Name == "GOMEMLIMIT" {
				got = variable.Value
			}
		}
		if got != want {
			t.Errorf("%s: GOMEMLIMIT is %q, want %q", assignments, got, want)
		}
	}
	if _, err := Template("sidecarset-system", "resources.limits.memory=1e9"); err == nil || !strings.Contains(err.Error(), "goMemoryLimit") {
		t.Errorf("a limit that is in neither Mi nor Gi: %v", err)
	}
}

func TestImages(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0", 64)
	for assignments, want := range map[string]string{
		"image.repository=example.com/a":                                     "example.com/a:dev",
		"image.repository=example.com/a,image.tag=v1":                        "example.com/a:v1",
		"image.repository=example.com/a,image.tag=v1,image.digest=" + digest: "example.com/a@" + digest,
	} {
		if got := pod(t, assignments).Containers[0].Image; got != want {
			t.Errorf("%s: the image is %s, want %s", assignments, got, want)
		}
	}
}

func TestArgumentsFollowTheValues(t *testing.T) {
	for assignments, want := range map[string]string{
		"excludedNamespaces={kube-system,calico-system}":                        "--excluded-namespaces=kube-system,calico-system",
		"requesterCheck=off":                                                    "--requester-check=off",
		"certificates.mode=files,certificates.secretName=mine":                  "--cert-mode=files",
		"extraArgs={--zap-log-level=1,--excluded-namespaces=a\\,b}":             "--excluded-namespaces=a,b",
		"ports.webhook=19443":                                                   "--webhook-bind-address=:19443",
		"ports.metrics=18443":                                                   "--metrics-bind-address=:18443",
		"ports.probes=18081":                                                    "--health-probe-bind-address=:18081",
		"certificates.mode=files,certificates.secretName=mine,profile=hardened": "--cert-dir=/var/run/sidecarset/certs",
	} {
		if args := pod(t, assignments).Containers[0].Args; !slices.Contains(args, want) {
			t.Errorf("%s: the arguments are %q, want %s", assignments, args, want)
		}
	}
	if _, err := Template("sidecarset-system", "certificates.mode=files"); err == nil || !strings.Contains(err.Error(), "certificates.secretName") {
		t.Errorf("mode files without a Secret: %v", err)
	}
}

// A ServiceMonitor has the token of an account that the chart makes, and that may read metrics only, or the user's.
func TestTheMonitorHasAToken(t *testing.T) {
	for assignments, want := range map[string]string{
		"serviceMonitor.enabled=true": "sidecarset-scraper",
		"serviceMonitor.enabled=true,serviceMonitor.authorization.credentials.name=mine,serviceMonitor.authorization.credentials.key=token": "mine",
	} {
		all := objects(t, rendered(t, "sidecarset-system", assignments))
		var monitor struct {
			Spec struct {
				Endpoints []struct {
					Authorization struct{ Credentials struct{ Name, Key string } }
				}
			}
		}
		convert(t, all["ServiceMonitor sidecarset-system sidecarset"], &monitor)
		if got := monitor.Spec.Endpoints[0].Authorization.Credentials; got.Name != want || got.Key != "token" {
			t.Errorf("%s: the token is that of %+v, want %s", assignments, got, want)
		}
		_, made := all["Secret sidecarset-system sidecarset-scraper"]
		_, bound := all["ClusterRoleBinding  sidecarset-metrics-reader"]
		if ours := want == "sidecarset-scraper"; made != ours || bound != ours {
			t.Errorf("%s: the Secret is made: %v, the account may read: %v, want %v", assignments, made, bound, ours)
		}
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

func TestVolumesAndExtraObjects(t *testing.T) {
	for _, mode := range []string{"self", "files"} {
		spec := pod(t, "certificates.mode="+mode, "certificates.secretName=mine", "volumes[0].name=ca", "volumes[0].configMap.name=ca",
			"volumeMounts[0].name=ca", "volumeMounts[0].mountPath=/ca")
		if i := len(spec.Volumes) - 1; i < 0 || spec.Volumes[i].ConfigMap == nil || spec.Containers[0].VolumeMounts[i].MountPath != "/ca" || (mode == "files") != (i == 1) {
			t.Errorf("mode %s: volumes %+v, mounts %+v", mode, spec.Volumes, spec.Containers[0].VolumeMounts)
		}
	}
	extra := map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "{{ .Release.Namespace }}"}}
	release, err := template("elsewhere", map[string]any{"extraObjects": []any{extra}})
	if err != nil {
		t.Fatal(err)
	}
	if _, found := objects(t, release.Manifest)["ConfigMap  elsewhere"]; !found {
		t.Error("the ConfigMap with the name of the release's namespace is missing")
	}
	account := objects(t, rendered(t, "elsewhere", "serviceAccount.annotations.role=a", "annotations.team=b"))["ServiceAccount elsewhere sidecarset-operator"]
	if diff := cmp.Diff(map[string]any{"role": "a", "team": "b"}, account["metadata"].(map[string]any)["annotations"]); diff != "" {
		t.Errorf("annotations of the ServiceAccount (-want +got):\n%s", diff)
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

// pod is the Pod of the first Deployment.
func pod(t *testing.T, assignments ...string) corev1.PodSpec {
	t.Helper()
	all := objects(t, rendered(t, "sidecarset-system", assignments...))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if strings.HasPrefix(name, "Deployment ") {
			text, err := yaml.Marshal(all[name]["spec"].(map[string]any)["template"].(map[string]any)["spec"])
			if err != nil {
				t.Fatal(err)
			}
			var spec corev1.PodSpec
			if err := yaml.UnmarshalStrict(text, &spec); err != nil {
				t.Fatal(err)
			}
			return spec
		}
	}
	t.Fatal("there is no Deployment")
	return corev1.PodSpec{}
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

// NOTES say how to continue, and how to uninstall in the right order.
func TestNotes(t *testing.T) {
	for assignments, want := range map[string][]string{
		"profile=default": {"NO IMAGE IS SET", "rollout status deployment/sidecarset-operator", "kubectl delete sidecarsets --all\n  helm uninstall", "--take-ownership"},
		"profile=hardened,image.repository=example.com/a": {"deployment/sidecarset-webhook", "deployment/sidecarset-controller"},
		"crd.keep=true":    {"kubectl delete mutatingwebhookconfigurations -l sidecarset.io/pod-webhooks\n  helm uninstall", "docs/troubleshooting.md#take-the-operator-out-of-the-way"},
		"crd.keep=false":   {"and with it all SidecarSets"},
		"crd.create=false": {"is not of this release"},
		"hostNetwork=true": {"pod-security.kubernetes.io/enforce=privileged"},
	} {
		release, err := Template("sidecarset-system", assignments)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range want {
			if !strings.Contains(release.Info.Notes, part) {
				t.Errorf("%s: the notes lack %q:\n%s", assignments, part, release.Info.Notes)
			}
		}
		if strings.Contains(assignments, "image") && strings.Contains(release.Info.Notes, "NO IMAGE") {
			t.Errorf("%s: the notes ask for an image", assignments)
		}
	}
}

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
