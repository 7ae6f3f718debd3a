package webhooks

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/go-logr/logr"
)

// manyObjects is a review of count objects of 10 KiB that is made as it is read;
// end follows the last object.
func manyObjects(count int, end string) io.Reader {
	object := `{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","metadata":{"name":"s"},"spec":{"customVersion":"v","containers":[{"name":"c","args":["` + strings.Repeat("x", 10<<10) + `"]}]}}`
	readers := []io.Reader{strings.NewReader(`{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1","request":{"uid":"u-1","desiredAPIVersion":"` + conversionAlpha + `","objects":[` + object)}
	for range count - 1 {
		readers = append(readers, strings.NewReader(","), strings.NewReader(object))
	}
	return io.MultiReader(append(readers, strings.NewReader(end))...)
}

// counted is an answer of which only the end is kept.
type counted struct {
	http.ResponseWriter
	bytes int
	tail  []byte
}

func (c *counted) Write(p []byte) (int, error) {
	c.bytes += len(p)
	c.tail = append(c.tail, p...)
	c.tail = append([]byte(nil), c.tail[max(0, len(c.tail)-400):]...)
	return len(p), nil
}

func convertCounted(body io.Reader) *counted {
	request := httptest.NewRequest(http.MethodPost, "/convert", body)
	request.Header.Set("Content-Type", "application/json")
	out := &counted{ResponseWriter: httptest.NewRecorder()}
	NewConversionHandler(logr.Discard()).ServeHTTP(out, request)
	return out
}

// The heap that a review of 60 MiB needs is that of a few of its objects.
func TestConversionHoldsAFewObjectsInMemory(t *testing.T) {
	body := manyObjects(6_000, `]}}`)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	out := convertCounted(body)
	runtime.ReadMemStats(&after)
	if out.bytes < 59<<20 || !strings.HasSuffix(string(out.tail), `"result":{"status":"Success"}},"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1"}`) {
		t.Errorf("%d bytes that end with %s", out.bytes, out.tail)
	}
	if grown := int64(after.HeapSys) - int64(before.HeapSys); grown > 32<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
}

// What is wrong with a long review after its answer has begun fails it.
func TestConversionFailsAfterTheAnswerHasBegun(t *testing.T) {
	for name, end := range map[string]string{
		"half a document":     `,{"apiVersion":`,
		"an object of ours":   `,{"apiVersion":"apps.kruise.io/v1beta1","kind":"CloneSet"}]}}`,
		"an object too large": `,{"x":"` + strings.Repeat("y", maxConvertedBytes) + `"}]}}`,
		"two documents":       `]}}{}`,
	} {
		t.Run(name, func(t *testing.T) {
			out := convertCounted(manyObjects(100, end))
			if !strings.Contains(string(out.tail), `"result":{"status":"Failure","message":"`) || !strings.HasSuffix(string(out.tail), `}`) {
				t.Errorf("the answer ends with %s", out.tail)
			}
		})
	}
}

func TestConversionRefusesAnObjectThatIsTooLong(t *testing.T) {
	object := fmt.Sprintf(`{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","spec":{"x":%q}}`, strings.Repeat("y", maxConvertedBytes))
	recorder := postConversion(t, strings.NewReader(conversionReviewOf("apiextensions.k8s.io/v1", conversionAlpha, object)))
	if recorder.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d: %s", recorder.Code, recorder.Body)
	}
}

// The members of a review may stand in any order.
func TestConversionTakesMembersInAnyOrder(t *testing.T) {
	object := `{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","metadata":{"name":"b"},"spec":{}}`
	recorder := postConversion(t, strings.NewReader(`{"request":{"objects":[`+object+`],"invented":[{}],"desiredAPIVersion":"`+conversionAlpha+
		`","uid":"u-1"},"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview"}`))
	var answer struct {
		Response struct {
			UID              string
			ConvertedObjects []struct{ APIVersion string }
			Result           struct{ Status string }
		}
	}
	if err := json.Unmarshal(recorder.Body.Bytes(), &answer); err != nil {
		t.Fatalf("%v: %s", err, recorder.Body)
	}
	if r := answer.Response; r.UID != "u-1" || len(r.ConvertedObjects) != 1 || r.ConvertedObjects[0].APIVersion != conversionAlpha || r.Result.Status != "Success" {
		t.Errorf("got %s", recorder.Body)
	}
}
