package conversion

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/sidecarset/operator/webhooks/server"
)

const (
	conversionAlpha = "apps.kruise.io/v1alpha1"
	conversionBeta  = "apps.kruise.io/v1beta1"
)

// conversionReviewOf is a review as the API server sends it.
func conversionReviewOf(version, desired string, objects ...string) string {
	return fmt.Sprintf(`{"kind":"ConversionReview","apiVersion":%q,"request":{"uid":"u-1","desiredAPIVersion":%q,"objects":[%s]}}`,
		version, desired, strings.Join(objects, ","))
}

func postConversion(t *testing.T, body io.Reader) *httptest.ResponseRecorder {
	t.Helper()
	request := httptest.NewRequest(http.MethodPost, "/convert", body)
	request.Header.Set("Content-Type", "application/json")
	recorder := httptest.NewRecorder()
	NewHandler(logr.Discard()).ServeHTTP(recorder, request)
	return recorder
}

func TestConversionAnswers(t *testing.T) {
	const v1, v1beta1 = "apiextensions.k8s.io/v1", "apiextensions.k8s.io/v1beta1"
	older := `{"apiVersion":"apps.kruise.io/v1alpha1","kind":"SidecarSet","metadata":{"name":"a","uid":"x"},"spec":{"namespace":"ns1"}}`
	newer := `{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","metadata":{"name":"b"},"spec":{"customVersion":"v2"}}`
	tests := map[string]struct {
		review, want string // want: the response member
	}{
		"several objects come back in their order": {
			conversionReviewOf(v1, conversionBeta, older, newer),
			`{"uid":"u-1","convertedObjects":[
				{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","metadata":{"name":"a","uid":"x"},"spec":{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"ns1"}}}},
				` + newer + `],"result":{"status":"Success"}}`,
		},
		"v1alpha1 is answered too": {
			conversionReviewOf(v1, conversionAlpha, newer),
			`{"uid":"u-1","convertedObjects":[
				{"apiVersion":"apps.kruise.io/v1alpha1","kind":"SidecarSet","metadata":{"name":"b","labels":{"apps.kruise.io/sidecarset-custom-version":"v2"}},"spec":{}}
				],"result":{"status":"Success"}}`,
		},
		"no objects is a success": {
			conversionReviewOf(v1, conversionBeta),
			`{"uid":"u-1","convertedObjects":[],"result":{"status":"Success"}}`,
		},
		"a v1beta1 review is answered in v1beta1": {
			conversionReviewOf(v1beta1, conversionBeta, newer),
			`{"uid":"u-1","convertedObjects":[` + newer + `],"result":{"status":"Success"}}`,
		},
		"an unknown desired version is a failure": {
			conversionReviewOf(v1, "apps.kruise.io/v2", newer),
			`{"uid":"u-1","result":{"status":"Failure","message":"unknown desired apiVersion \"apps.kruise.io/v2\", want apps.kruise.io/v1beta1 or apps.kruise.io/v1alpha1"}}`,
		},
		"an unknown desired version is a failure without objects as well": {
			conversionReviewOf(v1, ""),
			`{"uid":"u-1","result":{"status":"Failure","message":"unknown desired apiVersion \"\", want apps.kruise.io/v1beta1 or apps.kruise.io/v1alpha1"}}`,
		},
		"one bad object fails the review and is named": {
			conversionReviewOf(v1, conversionBeta, newer, `{"apiVersion":"apps.kruise.io/v1alpha1","kind":"SidecarSet","metadata":{"name":"mesh"},"spec":{"namespace":7}}`),
			`{"uid":"u-1","result":{"status":"Failure","message":"request.objects[1]: converting SidecarSet mesh to apps.kruise.io/v1beta1: spec.namespace is not a string"}}`,
		},
		"another kind fails the review": {
			conversionReviewOf(v1, conversionBeta, `{"apiVersion":"apps.kruise.io/v1alpha1","kind":"CloneSet","metadata":{"name":"c"}}`),
			`{"uid":"u-1","result":{"status":"Failure","message":"request.objects[0]: converting SidecarSet c: kind is CloneSet, want SidecarSet"}}`,
		},
		"an object that is none fails the review": {
			conversionReviewOf(v1, conversionBeta, `"text"`),
			`{"uid":"u-1","result":{"status":"Failure","message":"decoding request.objects[0]: it is not an object"}}`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			recorder := postConversion(t, strings.NewReader(tc.review))
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

// What conversion does not read leaves as the bytes that came in: numbers that
// no float64 holds, escapes, nulls and members nobody knows yet.
func TestConversionPassesBytesThrough(t *testing.T) {
	containers := `[{"name":"c","args":["a<b&c","\u2028"],"invented":{"big":9223372036854775807,"exact":1.10,"e":1E400,"none":null}}]`
	object := `{"apiVersion":"apps.kruise.io/v1alpha1","kind":"SidecarSet","metadata":{"name":"a","generation":9007199254740993},"spec":{"namespace":"n","containers":` + containers + `}}`
	recorder := postConversion(t, strings.NewReader(conversionReviewOf("apiextensions.k8s.io/v1", conversionBeta, object)))
	for _, want := range []string{`"containers":` + containers, `"generation":9007199254740993`} {
		if !strings.Contains(recorder.Body.String(), want) {
			t.Errorf("the answer lacks %s:\n%s", want, recorder.Body)
		}
	}
}

func TestConversionRefuses(t *testing.T) {
	valid := conversionReviewOf("apiextensions.k8s.io/v1", conversionBeta)
	tests := map[string]struct {
		method, contentType, body string
		status                    int
		want                      string
	}{
		"GET":                     {http.MethodGet, "application/json", "", http.StatusMethodNotAllowed, "not GET"},
		"another content type":    {http.MethodPost, "application/yaml", valid, http.StatusUnsupportedMediaType, `"application/yaml"`},
		"no content type":         {http.MethodPost, "", valid, http.StatusUnsupportedMediaType, "application/json"},
		"an empty body":           {http.MethodPost, "application/json", "", http.StatusBadRequest, "not a ConversionReview"},
		"half a document":         {http.MethodPost, "application/json", valid[:40], http.StatusBadRequest, "not a ConversionReview"},
		"two documents":           {http.MethodPost, "application/json", valid + valid, http.StatusBadRequest, "not a ConversionReview"},
		"a list":                  {http.MethodPost, "application/json", "[]", http.StatusBadRequest, "not a ConversionReview"},
		"null":                    {http.MethodPost, "application/json", "null", http.StatusBadRequest, "expected kind ConversionReview"},
		"objects of a wrong type": {http.MethodPost, "application/json", strings.Replace(valid, "[]", "{}", 1), http.StatusBadRequest, "/request/objects"},
		"another kind":            {http.MethodPost, "application/json", `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}`, http.StatusBadRequest, `"AdmissionReview"`},
		"an unknown version":      {http.MethodPost, "application/json", strings.Replace(valid, "k8s.io/v1", "k8s.io/v3", 1), http.StatusBadRequest, "k8s.io/v3"},
		"no request":              {http.MethodPost, "application/json", `{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1"}`, http.StatusBadRequest, "request is missing"},
		"no uid":                  {http.MethodPost, "application/json", strings.Replace(valid, "u-1", "", 1), http.StatusBadRequest, "request.uid is missing"},
		"nesting without end":     {http.MethodPost, "application/json", strings.Repeat(`{"request":`, 20_000), http.StatusBadRequest, "not a ConversionReview"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			request := httptest.NewRequest(tc.method, "/convert", strings.NewReader(tc.body))
			request.Header.Set("Content-Type", tc.contentType)
			recorder := httptest.NewRecorder()
			NewHandler(logr.Discard()).ServeHTTP(recorder, request)
			if recorder.Code != tc.status || !strings.Contains(recorder.Body.String(), tc.want) {
				t.Errorf("status %d %q, want %d and a text with %q", recorder.Code, recorder.Body, tc.status, tc.want)
			}
		})
	}
}

func TestConversionBoundsTheBody(t *testing.T) {
	review := conversionReviewOf("apiextensions.k8s.io/v1", conversionBeta)
	post := func(limit int64, body io.Reader) int {
		request := httptest.NewRequest(http.MethodPost, "/convert", body)
		request.Header.Set("Content-Type", "application/json; charset=utf-8")
		recorder := httptest.NewRecorder()
		(&handler{log: logr.Discard(), limit: limit}).ServeHTTP(recorder, request)
		return recorder.Code
	}
	size := int64(len(review))
	unknownLength := func() io.Reader { return io.MultiReader(strings.NewReader(review)) }
	tests := map[string]struct {
		limit int64
		body  io.Reader
		want  int
	}{
		"a body at the limit is read":             {size, unknownLength(), http.StatusOK},
		"a declared length over the limit":        {size - 1, strings.NewReader(review), http.StatusRequestEntityTooLarge},
		"an undeclared length over the limit":     {size - 1, unknownLength(), http.StatusRequestEntityTooLarge},
		"the real limit holds a body without end": {server.MaxConversionBytes, io.MultiReader(strings.NewReader(`{"x":"`), endless{}), http.StatusRequestEntityTooLarge},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := post(tc.limit, tc.body); got != tc.want {
				t.Errorf("status %d, want %d", got, tc.want)
			}
		})
	}
}

// endless is a JSON string that nobody closes.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'a'
	}
	return len(p), nil
}

// A LIST of a large cluster is one review.
func TestConversionOfALargeList(t *testing.T) {
	const count, padding = 1_500, 10 << 10
	objects := make([]string, count)
	for i := range objects {
		objects[i] = fmt.Sprintf(`{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","metadata":{"name":"s-%d"},"spec":{"customVersion":"v%d","containers":[{"name":"c","args":[%q]}]}}`,
			i, i, strings.Repeat("x", padding))
	}
	recorder := postConversion(t, strings.NewReader(conversionReviewOf("apiextensions.k8s.io/v1", conversionAlpha, objects...)))
	var answer struct {
		Response struct {
			ConvertedObjects []struct {
				APIVersion string
				Metadata   struct {
					Name   string
					Labels map[string]string
				}
			}
		}
	}
	if err := json.Unmarshal(recorder.Body.Bytes(), &answer); err != nil {
		t.Fatalf("parsing the answer: %v", err)
	}
	if got := len(answer.Response.ConvertedObjects); got != count {
		t.Fatalf("%d objects, want %d", got, count)
	}
	for i, object := range answer.Response.ConvertedObjects {
		version := object.Metadata.Labels["apps.kruise.io/sidecarset-custom-version"]
		if object.APIVersion != conversionAlpha || object.Metadata.Name != fmt.Sprintf("s-%d", i) || version != fmt.Sprintf("v%d", i) {
			t.Fatalf("object %d is %+v", i, object)
		}
	}
}

// The members of a review may come in any order.
func TestConversionTakesMembersInAnyOrder(t *testing.T) {
	object := `{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","metadata":{"name":"b"},"spec":{}}`
	recorder := postConversion(t, strings.NewReader(`{"request":{"objects":[`+object+`],"invented":[{}],"desiredAPIVersion":"`+conversionAlpha+
		`","uid":"u-1"},"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview"}`))
	for _, want := range []string{`"uid":"u-1"`, `"apiVersion":"` + conversionAlpha + `"`, `"Success"`} {
		if !strings.Contains(recorder.Body.String(), want) {
			t.Errorf("the answer lacks %s: %s", want, recorder.Body)
		}
	}
}

// What is more than a cluster can have fails the review, before memory is spent.
func TestConversionBoundsObjects(t *testing.T) {
	tiny := `{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet"}`
	for name, tc := range map[string]struct{ objects, want string }{
		"tiny objects":   {strings.Repeat(tiny+",", 200_000) + tiny, "more than 20000 objects"},
		"empty objects":  {strings.Repeat(`{},`, 4_000_000) + `{}`, "kind is"},
		"a large object": {`{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","spec":{"x":"` + strings.Repeat("y", 5<<20) + `"}}`, "longer than"},
	} {
		t.Run(name, func(t *testing.T) {
			recorder := postConversion(t, strings.NewReader(conversionReviewOf("apiextensions.k8s.io/v1", conversionAlpha, tc.objects)))
			if body := recorder.Body.String(); !strings.Contains(body, `"Failure"`) || !strings.Contains(body, tc.want) {
				t.Errorf("%d %.300s", recorder.Code, body)
			}
		})
	}
}

func BenchmarkConversionOfALargeList(b *testing.B) {
	object := `{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","metadata":{"name":"s"},"spec":{"customVersion":"v","containers":[{"name":"c","args":["` + strings.Repeat("x", 10<<10) + `"]}]}}`
	body := []byte(conversionReviewOf("apiextensions.k8s.io/v1", conversionAlpha, strings.Repeat(object+",", 1_499)+object))
	handler := NewHandler(logr.Discard())
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		request := httptest.NewRequest(http.MethodPost, "/convert", bytes.NewReader(body))
		request.Header.Set("Content-Type", "application/json")
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, request)
		if recorder.Code != http.StatusOK {
			b.Fatal(recorder.Code)
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
