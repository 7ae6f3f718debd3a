package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// clusterOf serves a cluster whose operator runs in Pods with these first lines of their logs.
func clusterOf(t *testing.T, minor string, logs ...string) (url string) {
	t.Helper()
	var pods corev1.PodList
	mux := http.NewServeMux()
	for i, line := range logs {
		name := fmt.Sprintf("operator-%d", i)
		pods.Items = append(pods.Items, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "sidecarset-system", Name: name}})
		mux.HandleFunc("GET /api/v1/namespaces/sidecarset-system/pods/"+name+"/log", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, line) })
	}
	for path, value := range map[string]any{
		"/version": map[string]string{"major": "1", "minor": minor, "gitVersion": "v1." + minor + ".1"},
		"/api/v1/namespaces/sidecarset-system/pods": pods,
	} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if err := json.NewEncoder(w).Encode(value); err != nil {
				t.Error(err)
			}
		})
	}
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

func logged(version string) string {
	return `{"level":"info","msg":"Starting","version":"` + version + `","role":"all"}`
}

func TestVersionComparesWithTheOperator(t *testing.T) {
	tests := map[string]struct {
		logs []string
		want string
	}{
		"the same version": {[]string{logged("v1"), logged("v1")}, "Plugin:      v1\nKubernetes:  v1.37.1\nOperator:    v1, Pods: 2\n"},
		"two versions":     {[]string{logged("v1"), logged("v2")}, "Warning:     what the plugin predicts may differ from what the operator does: use the plugin of the operator's version\n"},
		"a shortened log":  {[]string{"later"}, "Warning:     not known: the log of Pod sidecarset-system/operator-0 no longer has its first line, which names the version\n"},
		"without operator": {nil, "Warning:     not known: namespace sidecarset-system has no Pod of the operator; name its namespace with --operator-namespace\n"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, errs bytes.Buffer
			code := Run([]string{"version", "--kubeconfig", os.DevNull, "--server", clusterOf(t, "37", tc.logs...)}, Streams{Out: &out, ErrOut: &errs}, "v1")
			if code != 0 || !strings.HasSuffix(out.String(), tc.want) {
				t.Errorf("exit code %d, printed\n%s%swant at the end\n%s", code, out.String(), errs.String(), tc.want)
			}
		})
	}
}
