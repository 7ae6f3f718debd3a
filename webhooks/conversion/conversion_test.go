package conversion

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sidecarset/operator/webhooks/server"
)

const (
	conversionAlpha = "apps.kruise.io/v1alpha1"
	conversionBeta  = "apps.kruise.io/v1beta1"
	reviewVersion   = "apiextensions.k8s.io/v1"
)

// conversionReviewOf is a review as the API server sends it.
func conversionReviewOf(version, desired string, objects ...string) string {
	return fmt.Sprintf(`{"kind":"ConversionReview","apiVersion":%q,"request":{"uid":"u-1","desiredAPIVersion":%q,"objects":[%s]}}`,
		version, desired, strings.Join(objects, ","))
}

func postConversion(t *testing.T, body string) *httptest.ResponseRecorder {
	t.Helper()
	recorder := httptest.NewRecorder()
	server.Handler(Handle).Answer(t.Context(), recorder, server.Request{Path: "/convert", Body: []byte(body)})
	return recorder
}

func TestConversionAnswers(t *testing.T) {
	older := `{"apiVersion":"apps.kruise.io/v1alpha1","kind":"SidecarSet","metadata":{"name":"a","uid":"x"},"spec":{"namespace":"ns1"}}`
	newer := `{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","metadata":{"name":"b"},"spec":{"customVersion":"v2"}}`
	tests := map[string]struct {
		review, want string // want: the response member
	}{
		"several objects come back in their order": {
			conversionReviewOf(reviewVersion, conversionBeta, older, newer),
			`{"uid":"u-1","convertedObjects":[
				{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","metadata":{"name":"a","uid":"x"},"spec":{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"ns1"}}}},
				` + newer + `],"result":{"status":"Success"}}`,
		},
		"v1alpha1 is answered too": {
			conversionReviewOf(reviewVersion, conversionAlpha, newer),
			`{"uid":"u-1","convertedObjects":[
				{"apiVersion":"apps.kruise.io/v1alpha1","kind":"SidecarSet","metadata":{"name":"b","labels":{"apps.kruise.io/sidecarset-custom-version":"v2"}},"spec":{}}
				],"result":{"status":"Success"}}`,
		},
		"a namespaceSelector comes back in the form in which v1alpha1 has it": {
			conversionReviewOf(reviewVersion, conversionAlpha,
				`{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","metadata":{"name":"a"},"spec":{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"ns1"}}}}`,
				`{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","metadata":{"name":"b","annotations":{"k":"v","sidecarset.io/v1alpha1-namespace-selector":"true"}},"spec":{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"ns1"}}}}`),
			`{"uid":"u-1","convertedObjects":[
				{"apiVersion":"apps.kruise.io/v1alpha1","kind":"SidecarSet","metadata":{"name":"a"},"spec":{"namespace":"ns1"}},
				{"apiVersion":"apps.kruise.io/v1alpha1","kind":"SidecarSet","metadata":{"name":"b","annotations":{"k":"v"}},"spec":{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"ns1"}}}}
				],"result":{"status":"Success"}}`,
		},
		"members may come in any order": {
			`{"request":{"objects":[` + newer + `],"invented":[{}],"desiredAPIVersion":"` + conversionBeta + `","uid":"u-1"},"apiVersion":"` + reviewVersion + `","kind":"ConversionReview"}`,
			`{"uid":"u-1","convertedObjects":[` + newer + `],"result":{"status":"Success"}}`,
		},
		"no objects is a success": {
			conversionReviewOf(reviewVersion, conversionBeta),
			`{"uid":"u-1","convertedObjects":[],"result":{"status":"Success"}}`,
		},
		"an unknown desired version is a failure": {
			conversionReviewOf(reviewVersion, "apps.kruise.io/v2", newer),
			`{"uid":"u-1","result":{"status":"Failure","message":"unknown desired apiVersion \"apps.kruise.io/v2\", want apps.kruise.io/v1beta1 or apps.kruise.io/v1alpha1"}}`,
		},
		"an unknown desired version is a failure without objects as well": {
			conversionReviewOf(reviewVersion, ""),
			`{"uid":"u-1","result":{"status":"Failure","message":"unknown desired apiVersion \"\", want apps.kruise.io/v1beta1 or apps.kruise.io/v1alpha1"}}`,
		},
		"one bad object fails the review and is named": {
			conversionReviewOf(reviewVersion, conversionBeta, newer, `{"apiVersion":"apps.kruise.io/v1alpha1","kind":"SidecarSet","metadata":{"name":"mesh"},"spec":{"namespace":7}}`),
			`{"uid":"u-1","result":{"status":"Failure","message":"request.objects[1]: converting SidecarSet mesh to apps.kruise.io/v1beta1: spec.namespace is not a string"}}`,
		},
		"another kind fails the review": {
			conversionReviewOf(reviewVersion, conversionBeta, `{"apiVersion":"apps.kruise.io/v1alpha1","kind":"CloneSet","metadata":{"name":"c"}}`),
			`{"uid":"u-1","result":{"status":"Failure","message":"request.objects[0]: converting SidecarSet c: kind is CloneSet, want SidecarSet"}}`,
		},
		"an object that is none fails the review": {
			conversionReviewOf(reviewVersion, conversionBeta, `"text"`),
			`{"uid":"u-1","result":{"status":"Failure","message":"decoding request.objects[0]: it is not an object"}}`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			recorder := postConversion(t, tc.review)
			if recorder.Code != http.StatusOK || recorder.Header().Get("Content-Type") != "application/json" {
				t.Fatalf("status %d, header %v: %s", recorder.Code, recorder.Header(), recorder.Body)
			}
			var got, sent map[string]any
			parseConversion(t, recorder.Body.Bytes(), &got)
			parseConversion(t, []byte(tc.review), &sent)
			var response map[string]any
			parseConversion(t, []byte(tc.want), &response)
			want := map[string]any{"kind": "ConversionReview", "apiVersion": sent["apiVersion"], "response": response}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
		})
	}
}

// Conversion passes on, byte by byte, everything that it does not read: numbers that do not
// fit into a float64, escapes, nulls and members that this build does not know.
func TestConversionPassesBytesThrough(t *testing.T) {
	containers := `[{"name":"c","args":["a<b&c","\u2028"],"invented":{"big":9223372036854775807,"exact":1.10,"e":1E400,"none":null}}]`
	object := `{"apiVersion":"apps.kruise.io/v1alpha1","kind":"SidecarSet","metadata":{"name":"a","generation":9007199254740993,"annotations":{"k":"\u003c"}},"spec":{"namespace":"n","containers":` + containers + `}}`
	recorder := postConversion(t, conversionReviewOf(reviewVersion, conversionBeta, object))
	for _, want := range []string{`"containers":` + containers, `"generation":9007199254740993`, `"annotations":{"k":"\u003c"}`} {
		if !strings.Contains(recorder.Body.String(), want) {
			t.Errorf("the answer lacks %s:\n%s", want, recorder.Body)
		}
	}
}

func TestConversionRefuses(t *testing.T) {
	valid := conversionReviewOf(reviewVersion, conversionBeta)
	tests := map[string]struct{ body, want string }{
		"half a document":         {valid[:40], "unexpected EOF"},
		"two documents":           {valid + valid, "after top-level value"},
		"a list":                  {"[]", "array"},
		"null":                    {"null", "expected kind ConversionReview"},
		"objects of a wrong type": {strings.Replace(valid, "[]", "{}", 1), "/request/objects"},
		"another kind":            {`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}`, "AdmissionReview"},
		"an older version":        {strings.Replace(valid, "k8s.io/v1", "k8s.io/v1beta1", 1), "k8s.io/v1beta1"},
		"no request":              {`{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1"}`, "request is missing"},
		"no uid":                  {strings.Replace(valid, "u-1", "", 1), "request.uid is missing"},
		"nesting without end":     {strings.Repeat(`{"request":`, 20_000), "depth"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			recorder := postConversion(t, tc.body)
			if text := recorder.Body.String(); recorder.Code != http.StatusBadRequest || !strings.Contains(text, "malformed ConversionReview") || !strings.Contains(text, tc.want) {
				t.Errorf("status %d %q, want a text with %q", recorder.Code, text, tc.want)
			}
		})
	}
}

// A LIST of a large cluster is one review.
func TestConversionOfALargeList(t *testing.T) {
	recorder := postConversion(t, conversionReviewOf(reviewVersion, conversionAlpha, largeList()...))
	if got := strings.Count(recorder.Body.String(), `"labels":{"apps.kruise.io/sidecarset-custom-version":"v"}`); got != len(largeList()) {
		t.Fatalf("%d objects, want %d: %.300s", got, len(largeList()), recorder.Body)
	}
}

// largeList is 1,500 objects of 10 KiB.
func largeList() []string {
	object := `{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","metadata":{"name":"s"},"spec":{"customVersion":"v","containers":[{"name":"c","args":["` + strings.Repeat("x", 10<<10) + `"]}]}}`
	return slices.Repeat([]string{object}, 1_500)
}

// A review with more or larger objects than a cluster can have fails, before it takes memory.
func TestConversionBoundsObjects(t *testing.T) {
	tiny := `{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet"}`
	for name, tc := range map[string]struct{ objects, want string }{
		"tiny objects":   {strings.Repeat(tiny+",", 200_000) + tiny, "more than 20000 objects"},
		"empty objects":  {strings.Repeat(`{},`, 4_000_000) + `{}`, "kind is"},
		"a large object": {`{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","spec":{"x":"` + strings.Repeat("y", 5<<20) + `"}}`, "longer than"},
	} {
		t.Run(name, func(t *testing.T) {
			recorder := postConversion(t, conversionReviewOf(reviewVersion, conversionAlpha, tc.objects))
			if body := recorder.Body.String(); !strings.Contains(body, `"Failure"`) || !strings.Contains(body, tc.want) {
				t.Errorf("%d %.300s", recorder.Code, body)
			}
		})
	}
}

func BenchmarkConversionOfALargeList(b *testing.B) {
	body := []byte(conversionReviewOf(reviewVersion, conversionAlpha, largeList()...))
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		recorder := httptest.NewRecorder()
		if err := Handle(b.Context(), recorder, server.Request{Body: body}); err != nil {
			b.Fatal(err)
		}
	}
}

func parseConversion(t *testing.T, data []byte, into any) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	if err := decoder.Decode(into); err != nil {
		t.Fatalf("parsing %s: %v", data, err)
	}
}
