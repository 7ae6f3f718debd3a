package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/sidecarset/operator/internal/fixtures"
)

// run runs the plugin as a user does.
func run(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errOut bytes.Buffer
	code = Run(args, Streams{In: strings.NewReader(stdin), Out: &out, ErrOut: &errOut}, "test")
	return out.String(), errOut.String(), code
}

// The golden cases of the engine, as files: inject prints the Pod that the webhook makes, or
// says why the webhook refuses it. It does so for YAML as people write it, for JSON, and for
// the template of a workload in a List.
func TestGoldenInjections(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", strconv.FormatInt(fixtures.Now.Unix(), 10))
	const golden = "../../../internal/fixtures/testdata/injection"
	for _, c := range fixtures.Cases(t) {
		t.Run(c.Name, func(t *testing.T) {
			namespaces := filepath.Join(t.TempDir(), "namespaces.json")
			var list []any
			for name, set := range c.Namespaces {
				list = append(list, map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name, "labels": set}})
			}
			if err := os.WriteFile(namespaces, encode(t, map[string]any{"apiVersion": "v1", "kind": "List", "items": list}), 0o600); err != nil {
				t.Fatal(err)
			}
			asWritten, err := os.ReadFile(filepath.Join(golden, c.Name, "pod.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			want := c.Want(t)
			asPod := func(object map[string]any) map[string]any { return object }
			check := func(manifest []byte, of func(map[string]any) map[string]any) {
				t.Helper()
				stdout, stderr, code := run(t, string(manifest), "inject", "-n", c.Namespace, "-f", "-", "-s", filepath.Join(golden, c.Name, "sidecarsets.yaml"), "-s", namespaces)
				if want.Refused != "" {
					if code != exitFailed || !strings.Contains(stderr, want.Refused) || !strings.Contains(stderr, "stdin:") || stdout != "" {
						t.Errorf("code %d, stderr %q, stdout %q, want a refusal: %s", code, stderr, stdout, want.Refused)
					}
					return
				}
				if code != exitDone {
					t.Fatalf("code %d: %s", code, stderr)
				}
				if diff := cmp.Diff(want.Pod, of(decodeManifest(t, stdout))); diff != "" {
					t.Errorf("Pod (-want +got):\n%s\nof\n%s", diff, stdout)
				}
			}
			check(asWritten, asPod)
			check(encode(t, c.Pod), asPod)
			check(encode(t, inWorkload(c.Pod)), fromWorkload)
		})
	}
}

// inWorkload is a List with a ReplicaSet whose template is the Pod.
func inWorkload(pod map[string]any) map[string]any {
	metadata, _ := pod["metadata"].(map[string]any)
	of := map[string]any{"name": "of-the-workload"}
	if namespace, ok := metadata["namespace"]; ok {
		of["namespace"] = namespace
	}
	return map[string]any{"apiVersion": "v1", "kind": "List", "items": []any{
		map[string]any{"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": of, "spec": map[string]any{"template": pod}},
	}}
}

func fromWorkload(list map[string]any) map[string]any {
	return list["items"].([]any)[0].(map[string]any)["spec"].(map[string]any)["template"].(map[string]any)
}

func encode(t *testing.T, value any) []byte {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// decodeManifest reads what inject has printed, as kubectl does.
func decodeManifest(t *testing.T, text string) (object map[string]any) {
	t.Helper()
	asJSON := []byte(text)
	if !strings.HasPrefix(text, "{") {
		var err error
		if asJSON, err = yaml.YAMLToJSONStrict(asJSON); err != nil {
			t.Fatal(err)
		}
	}
	if err := utiljson.Unmarshal(asJSON, &object); err != nil {
		t.Fatal(err)
	}
	return object
}
