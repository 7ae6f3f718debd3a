package cli

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A cluster without the operator is asked about a PodTemplate.
func TestLintAsksAClusterWithoutTheOperator(t *testing.T) {
	refusal := metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "FieldValueInvalid", Field: "template.spec.containers[0].env[0].name", Message: `Invalid value: "a=b": no`}}},
	}
	var asked []string
	answer := refusal
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.Path+" "+r.URL.Query().Get("dryRun")+" "+r.URL.Query().Get("fieldValidation"))
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path != "/api/v1/namespaces/team/podtemplates" {
			http.NotFound(w, r)
			return
		}
		w.WriteHeader(int(answer.Code))
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "set.yaml")
	const manifest = "apiVersion: apps.kruise.io/v1beta1\nkind: SidecarSet\nmetadata: {name: a}\nspec:\n  selector: {matchLabels: {app: web}}\n  containers:\n  - name: c\n    image: b\n    env:\n    - name: a=b\n"
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	lint := func() (string, string, int) {
		var out, errs bytes.Buffer
		code := Run([]string{"lint", "-f", file, "--dry-run=server", "--server=" + server.URL, "-n", "team"}, Streams{In: strings.NewReader(""), Out: &out, ErrOut: &errs}, "test")
		return out.String(), errs.String(), code
	}
	out, _, code := lint()
	if want := file + `:10:7: error: SidecarSet a: spec.containers[0].env[0].name: Invalid value: "a=b": no (container c)`; code != 2 || !strings.Contains(out, want) {
		t.Errorf("exit code %d, want %q in\n%s", code, want, out)
	}
	want := "POST /apis/apps.kruise.io/v1beta1/sidecarsets All Warn POST /api/v1/namespaces/team/podtemplates All Warn"
	if got := strings.Join(asked, " "); got != want {
		t.Errorf("the cluster was asked %s, want %s", got, want)
	}

	// No verdict is no verdict.
	answer.Code, answer.Reason, answer.Message, answer.Details = http.StatusForbidden, metav1.StatusReasonForbidden, "podtemplates is forbidden", nil
	if _, errs, code := lint(); code != 1 || !strings.Contains(errs, "PodTemplate in namespace team: podtemplates is forbidden; --namespace names another one") {
		t.Errorf("exit code %d: %s", code, errs)
	}
}
