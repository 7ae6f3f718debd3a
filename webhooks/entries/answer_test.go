package entries

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/webhooks/server"
)

const barrierPath = "/barrier/sidecarset-pods-3/1700"

// probeReview returns the review of a probe for sidecarset-pods-3, with replacements as for
// strings.NewReplacer.
func probeReview(replace ...string) string {
	body := `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"uid-1","operation":"CREATE","dryRun":true,` +
		`"resource":{"group":"","version":"v1","resource":"configmaps"},"namespace":"ours",` +
		`"object":{"metadata":{"generateName":"sidecarset-barrier-","labels":{"sidecarset.io/barrier":"sidecarset-pods-3"}}}}}`
	return strings.NewReplacer(replace...).Replace(body)
}

func postBarrier(t *testing.T, path, body string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	server.Handler(AnswerBarrier).Answer(t.Context(), w, server.Request{Path: path, Body: []byte(body)})
	return w
}

func TestBarrierAnswersProbesOnly(t *testing.T) {
	tests := map[string]struct {
		path, body string
		want       string // the annotation
	}{
		"a probe gets the serial of the path":     {barrierPath, probeReview(), "1700"},
		"a probe with other annotations does too": {barrierPath, probeReview(`"labels"`, `"annotations":{"a":"b","sidecarset.io/barrier-serial":"9"},"labels"`), "1700"},
		"a probe with no annotations at all":      {barrierPath, probeReview(`"labels"`, `"annotations":{},"labels"`), "1700"},
		"a real ConfigMap is left alone":          {barrierPath, probeReview(`"dryRun":true`, `"dryRun":false`), ""},
		"no dryRun is a real one":                 {barrierPath, probeReview(`"dryRun":true,`, ``), ""},
		"an update is left alone":                 {barrierPath, probeReview("CREATE", "UPDATE"), ""},
		"another kind is":                         {barrierPath, probeReview("configmaps", "secrets"), ""},
		"a probe for another configuration is":    {barrierPath, probeReview("pods-3", "pods-4"), ""},
		"an object without labels is":             {barrierPath, probeReview(`"labels"`, `"novel"`), ""},
		"an object that is null is":               {barrierPath, probeReview(`"object":{`, `"object":null,"x":{`), ""},
		"a path without a serial is":              {"/barrier/sidecarset-pods-3", probeReview(), ""},
		"a path with a part too many is":          {barrierPath + "/1", probeReview(), ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := postBarrier(t, tc.path, tc.body)
			answer := fixtures.DecodeReview(t, w)
			if w.Code != http.StatusOK || !answer.Allowed || answer.UID != "uid-1" {
				t.Fatalf("got %d %s", w.Code, w.Body)
			}
			annotations := annotationsAfter(t, tc.body, answer.Patch)
			if got := annotations[entryplan.AnnotationBarrier]; got != tc.want {
				t.Errorf("the annotation is %q, want %q", got, tc.want)
			}
			if strings.Contains(tc.body, `"a":"b"`) && annotations["a"] != "b" {
				t.Errorf("the other annotations are %v", annotations)
			}
		})
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

func TestBarrierRefusesWhatItCannotRead(t *testing.T) {
	tests := map[string]string{
		"nothing":          "",
		"no JSON":          "uid",
		"a cut off review": probeReview()[:100],
		"no request":       `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}`,
		"no uid":           probeReview("uid-1", ""),
	}
	for name, body := range tests {
		t.Run(name, func(t *testing.T) {
			w := postBarrier(t, barrierPath, body)
			var status struct{ Kind, Message string }
			if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil || w.Code != http.StatusBadRequest || status.Kind != "Status" || status.Message == "" {
				t.Errorf("got %d %s", w.Code, w.Body)
			}
		})
	}
}

// API servers have connections for each path, and the path of a barrier changes with every
// SidecarSet. So the connection is closed after the answer.
func TestABarrierLeavesNoConnection(t *testing.T) {
	answer := postBarrier(t, entryplan.BarrierPath("sidecarset-pods-3", 7), probeReview())
	if answer.Code != http.StatusOK || !strings.Contains(answer.Body.String(), `"patch"`) {
		t.Errorf("answer %d: %s", answer.Code, answer.Body)
	}
	if got := answer.Header().Get("Connection"); got != "close" {
		t.Errorf("Connection: %q, want it closed", got)
	}
}
