package sidecarsets

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/sidecarset/operator/webhooks/server"
)

// sidecarSetReviewOf is the review of a v1beta1 SidecarSet with that spec.
func sidecarSetReviewOf(spec string) string {
	return `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u-1","kind":{"group":"apps.kruise.io","version":"v1beta1","kind":"SidecarSet"},` +
		`"resource":{"group":"apps.kruise.io","version":"v1beta1","resource":"sidecarsets"},"operation":"CREATE","name":"s","userInfo":{"username":"u"},"object":` +
		`{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","metadata":{"name":"s"},"spec":` + spec + `}}}`
}

// listOf is a JSON list that repeats one element, of about size bytes.
func listOf(element string, size int) string {
	count := max(1, size/(len(element)+1))
	return "[" + strings.Repeat(element+",", count-1) + element + "]"
}

func askSidecarSetDefaulter(body io.Reader) *httptest.ResponseRecorder {
	return askFor(NewDefaulter(), body)
}

func askFor(handler server.Handler, body io.Reader) *httptest.ResponseRecorder {
	request := httptest.NewRequest(http.MethodPost, "/", body)
	request.Header.Set("Content-Type", "application/json")
	recorder := httptest.NewRecorder()
	NewValueBound().Before(handler).ServeHTTP(recorder, request)
	return recorder
}

// A small body that would become very many values is refused before the values take memory.
func TestBodiesWithTooManyValuesAreRefused(t *testing.T) {
	tests := map[string]struct{ spec, want string }{
		"a megabyte of containers":     {`{"containers":` + listOf(`{}`, 1<<20) + `}`, "spec.containers: the list has more than 1000 elements"},
		"a megabyte of volumes":        {`{"volumes":` + listOf(`{}`, 1<<20) + `}`, "spec.volumes: the list has more than 1000 elements"},
		"three megabytes":              {`{"initContainers":` + listOf(`{}`, 3<<20) + `}`, "spec.initContainers: the list has more than 1000 elements"},
		"lists of a thousand elements": {`{"containers":[` + strings.Repeat(`{"ports":`+listOf(`{}`, 3000)+`},`, 200) + `{}]}`, "more than 120000 values"},
		"numbers":                      {`{"containers":` + listOf(`0`, 1<<20) + `}`, "more than 120000 values"},
		"7 MiB of labels":              {`{"selector":{"matchLabels":{` + manyMembers(6<<20) + `}}}`, "more than 120000 values"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			body := sidecarSetReviewOf(tc.spec)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			recorder := askSidecarSetDefaulter(strings.NewReader(body))
			runtime.ReadMemStats(&after)
			answer := recorder.Body.String()
			if recorder.Code != http.StatusRequestEntityTooLarge || !strings.Contains(answer, tc.want) {
				t.Errorf("%d %.300s; want a refusal that says %q", recorder.Code, answer, tc.want)
			}
			// Reading a body makes garbage of a few times its length.
			if made := after.TotalAlloc - before.TotalAlloc; made > uint64(8*len(body))+1<<20 {
				t.Errorf("%d bytes made %d bytes of garbage", len(body), made)
			}
		})
	}
}

// No API server sends a review in which an object has a name twice. Decoders use the first or
// the last of the two members, or both.
func TestMembersThatAreNamedTwiceAreRefused(t *testing.T) {
	once := sidecarSetReviewOf(`{"containers":[{"name":"a"}]}`)
	for name, body := range map[string]string{
		"a quantity":      sidecarSetReviewOf(`{"containers":[{"name":"a","resources":{"limits":{"cpu":"1e-900000000","cpu":"1"}}}]}`),
		"the old object":  once[:len(once)-2] + `,"oldObject":{},"oldObject":{}}}`,
		"in another one":  once[:len(once)-2] + `,"oldObject":{"spec":{},"spec":{}}}}`,
		"the object":      once[:len(once)-2] + `,"object":{}}}`,
		"escaped members": sidecarSetReviewOf(`{"containers":[{"name":"a","resources":{"limits":{"cp\u0075":"1e-900000000","cpu":"1"}}}]}`),
	} {
		if recorder := askSidecarSetDefaulter(strings.NewReader(body)); recorder.Code != http.StatusBadRequest || !strings.Contains(recorder.Body.String(), "duplicate") {
			t.Errorf("%s: %d %.300s, want a bad request", name, recorder.Code, recorder.Body)
		}
	}
}

// manyMembers are members of an object, of about size bytes.
func manyMembers(size int) string {
	var b strings.Builder
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, `"%x":"",`, i)
	}
	return strings.TrimSuffix(b.String(), ",")
}

func TestOrdinaryReviewsPass(t *testing.T) {
	// The number of strings in a list, such as names in a selector or groups of a user, has no
	// bound but that of all values.
	spec := `{"selector":{"matchLabels":{"a":"b"}},"namespaceSelector":{"matchExpressions":[{"key":"kubernetes.io/metadata.name","operator":"In","values":` + listOf(`"team"`, 40_000) + `}]},` +
		`"containers":` + listOf(`{"name":"c","image":"i"}`, 100*25) + `}`
	recorder := askSidecarSetDefaulter(bytes.NewBufferString(sidecarSetReviewOf(spec)))
	if recorder.Code != http.StatusOK || !strings.Contains(recorder.Body.String(), `"allowed":true`) {
		t.Errorf("%d %.300s", recorder.Code, recorder.Body)
	}
}
