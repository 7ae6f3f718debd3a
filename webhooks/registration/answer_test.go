package registration

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/webhooks/server"
)

// probeReview returns the review of a probe about shards 3 and 4, with replacements as for
// strings.NewReplacer.
func probeReview(replace ...string) string {
	body := `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"uid-1","operation":"CREATE","dryRun":true,` +
		`"resource":{"group":"","version":"v1","resource":"configmaps"},"namespace":"ours",` +
		`"object":{"metadata":{"generateName":"sidecarset-probe-","labels":{"sidecarset.io/probe-3":"1700","sidecarset.io/probe-4":"1800"}}}}}`
	return strings.NewReplacer(replace...).Replace(body)
}

func postProbe(t *testing.T, path, body string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	server.Handler(AnswerProbe).Answer(t.Context(), w, server.Request{Path: path, Body: []byte(body)})
	return w
}

func TestProbeAnswersProbesOnly(t *testing.T) {
	t.Parallel()
	const path = "/probe/3"
	tests := map[string]struct {
		path, body string
		want       string // the annotation of shard 3
	}{
		"a probe gets the label's value":              {path, probeReview(), "1700"},
		"beside the answer about another shard too":   {path, probeReview(`"labels"`, `"annotations":{"a/b":"c","sidecarset.io/probe-4":"1800"},"labels"`), "1700"},
		"an annotation of the creator proves nothing": {path, probeReview(`"labels"`, `"annotations":{"sidecarset.io/probe-3":"9"},"labels"`), "1700"},
		"a real ConfigMap is left alone":              {path, probeReview(`"dryRun":true`, `"dryRun":false`), ""},
		"an update is left alone":                     {path, probeReview("CREATE", "UPDATE"), ""},
		"another kind is":                             {path, probeReview("configmaps", "secrets"), ""},
		"an object that is null is":                   {path, probeReview(`"object":{`, `"object":null,"x":{`), ""},
		"a path of no shard is":                       {"/probe/16", probeReview("probe-3", "probe-16"), ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := postProbe(t, tc.path, tc.body)
			answer := fixtures.DecodeReview(t, w)
			if w.Code != http.StatusOK || !answer.Allowed || answer.UID != "uid-1" {
				t.Fatalf("got %d %s", w.Code, w.Body)
			}
			annotations := annotationsAfter(t, tc.body, answer.Patch)
			if got := annotations["sidecarset.io/probe-3"]; got != tc.want {
				t.Errorf("the annotation is %q, want %q", got, tc.want)
			}
			if strings.Contains(tc.body, `"a/b":"c"`) && (annotations["a/b"] != "c" || annotations["sidecarset.io/probe-4"] != "1800") {
				t.Errorf("the other annotations are %v", annotations)
			}
		})
	}
	static := probeReview("probe-3", "probe-static")
	if got := annotationsAfter(t, static, fixtures.DecodeReview(t, postProbe(t, "/probe/static", static)).Patch); got[podwebhook.LabelStaticProbe] != "1700" {
		t.Errorf("in static mode the annotations are %v", got)
	}
}

// annotationsAfter returns the annotations of the ConfigMap under review, with a patch applied.
func annotationsAfter(t *testing.T, body string, patch []byte) map[string]string {
	t.Helper()
	var review struct {
		Request struct{ Object map[string]any }
	}
	if err := json.Unmarshal([]byte(body), &review); err != nil {
		t.Fatal(err)
	}
	annotations, _, err := unstructured.NestedStringMap(fixtures.Patched(t, review.Request.Object, patch), "metadata", "annotations")
	if err != nil {
		t.Fatal(err)
	}
	return annotations
}
