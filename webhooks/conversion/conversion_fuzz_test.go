package conversion

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	kjson "sigs.k8s.io/json"

	"github.com/sidecarset/operator/internal/conversion"
)

// conversionAnswer has the parts of an answer that the API server reads.
type conversionAnswer struct {
	Kind       string `json:"kind"`
	APIVersion string `json:"apiVersion"`
	Response   *struct {
		UID              string            `json:"uid"`
		ConvertedObjects []json.RawMessage `json:"convertedObjects"`
		Result           struct {
			Status  string `json:"status"`
			Message string `json:"message"`
		} `json:"result"`
	} `json:"response"`
}

// For any bytes there is one answer that the API server can use. If it says that the
// conversion succeeded, its objects are those of the review, converted.
func FuzzConversionHandler(f *testing.F) {
	f.Add([]byte(conversionReviewOf(reviewVersion, conversionAlpha, `{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","spec":{"customVersion":"v"}}`)))
	f.Fuzz(func(t *testing.T, body []byte) {
		recorder := postConversion(t, string(body))
		if recorder.Code >= 400 && recorder.Code < 500 {
			if recorder.Body.Len() == 0 {
				t.Error("a refusal that says nothing")
			}
			return
		}
		if recorder.Code != http.StatusOK {
			t.Fatalf("got %d %s", recorder.Code, recorder.Body)
		}
		var answer conversionAnswer
		if err := kjson.UnmarshalCaseSensitivePreserveInts(recorder.Body.Bytes(), &answer); err != nil {
			t.Fatalf("the answer is no JSON: %v: %s", err, recorder.Body)
		}
		r := answer.Response
		if answer.Kind != kind || answer.APIVersion != apiVersion || r == nil {
			t.Fatalf("the answer is not a review: %s", recorder.Body)
		}
		switch r.Result.Status {
		case "Success":
			checkConverted(t, body, answer)
		case "Failure":
			if r.Result.Message == "" {
				t.Errorf("a failure that says nothing: %s", recorder.Body)
			}
		default:
			t.Errorf("the answer says neither: %s", recorder.Body)
		}
	})
}

// checkConverted reads the review with the API server's decoder and converts its
// objects one by one.
func checkConverted(t *testing.T, body []byte, answer conversionAnswer) {
	t.Helper()
	var review struct {
		APIVersion string `json:"apiVersion"`
		Request    struct {
			UID               string           `json:"uid"`
			DesiredAPIVersion string           `json:"desiredAPIVersion"`
			Objects           []map[string]any `json:"objects"`
		} `json:"request"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(body, &review); err != nil {
		if !json.Valid(body) {
			t.Fatalf("what was answered is no JSON: %s", body)
		}
		return // it has a number such as 1e400, which the API server cannot have stored
	}
	if answer.Response.UID != review.Request.UID || answer.APIVersion != review.APIVersion {
		t.Errorf("the answer is for %s of %s: %s", answer.Response.UID, answer.APIVersion, body)
	}
	if len(answer.Response.ConvertedObjects) != len(review.Request.Objects) {
		t.Fatalf("%d objects for %s", len(answer.Response.ConvertedObjects), body)
	}
	for i, object := range review.Request.Objects {
		want, err := conversion.Convert(object, review.Request.DesiredAPIVersion)
		if err != nil {
			t.Fatalf("object %d cannot be converted: %v: %s", i, err, body)
		}
		var got map[string]any
		if err := kjson.UnmarshalCaseSensitivePreserveInts(answer.Response.ConvertedObjects[i], &got); err != nil {
			t.Fatalf("converted object %d: %v: %s", i, err, body)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("object %d (-want +got):\n%s", i, diff)
		}
	}
}
