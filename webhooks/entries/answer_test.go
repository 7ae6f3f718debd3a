package entries

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/webhooks/server"
)

const barrierPath = "/barrier/sidecarset-pods-3/1700"

// probeReview is the review of a probe for sidecarset-pods-3, with what a test
// replaces in it.
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
			var review admissionv1.AdmissionReview
			if err := json.Unmarshal(w.Body.Bytes(), &review); err != nil || w.Code != http.StatusOK {
				t.Fatalf("got %d %s: %v", w.Code, w.Body, err)
			}
			answer := review.Response
			if review.APIVersion != "admission.k8s.io/v1" || review.Kind != "AdmissionReview" || answer == nil || !answer.Allowed || answer.UID != "uid-1" {
				t.Fatalf("got %s", w.Body)
			}
			if (answer.Patch == nil) != (answer.PatchType == nil) {
				t.Errorf("patch and its type have to come together: %s", w.Body)
			}
			object := patched(t, tc.body, answer.Patch)
			if got := object.Annotations[entryplan.AnnotationBarrier]; got != tc.want {
				t.Errorf("the annotation is %q, want %q", got, tc.want)
			}
			if strings.Contains(tc.body, `"a":"b"`) && object.Annotations["a"] != "b" {
				t.Errorf("the other annotations are %v", object.Annotations)
			}
		})
	}
}

// patched is the ConfigMap under review after the answer.
func patched(t *testing.T, body string, patch []byte) *corev1.ConfigMap {
	t.Helper()
	var review struct {
		Request struct{ Object json.RawMessage }
	}
	if err := json.Unmarshal([]byte(body), &review); err != nil {
		t.Fatal(err)
	}
	data := []byte(review.Request.Object)
	if patch != nil {
		operations, err := jsonpatch.DecodePatch(patch)
		if err != nil {
			t.Fatalf("decoding the patch %s: %v", patch, err)
		}
		if data, err = operations.Apply(data); err != nil {
			t.Fatalf("applying the patch %s: %v", patch, err)
		}
	}
	object := &corev1.ConfigMap{}
	if err := json.Unmarshal(data, object); err != nil {
		t.Fatal(err)
	}
	return object
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

// API servers have connections for each path, and that of a barrier changes with
// every SidecarSet.
func TestABarrierLeavesNoConnection(t *testing.T) {
	answer := postBarrier(t, entryplan.BarrierPath("sidecarset-pods-3", 7), probeReview())
	if answer.Code != http.StatusOK || !strings.Contains(answer.Body.String(), `"patch"`) {
		t.Errorf("answer %d: %s", answer.Code, answer.Body)
	}
	if got := answer.Header().Get("Connection"); got != "close" {
		t.Errorf("Connection: %q, want it closed", got)
	}
}
