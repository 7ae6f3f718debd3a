package health

import (
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// The test data is in the form of Argo CD's own tests.
func TestArgoReadsTheTestData(t *testing.T) {
	var data struct {
		Tests []struct {
			HealthStatus struct{ Status, Message string }
			InputPath    string
		}
	}
	read(t, "health_test.yaml", &data)
	if len(data.Tests) == 0 {
		t.Fatal("there are no tests")
	}
	for _, tc := range data.Tests {
		t.Run(tc.InputPath, func(t *testing.T) {
			object := &unstructured.Unstructured{}
			read(t, tc.InputPath, &object.Object)
			status, message, err := argo(object)
			if want := tc.HealthStatus; err != nil || status != want.Status || message != want.Message {
				t.Errorf("%s: %q, want %s: %q (%v)", status, message, want.Status, want.Message, err)
			}
		})
	}
}

func read(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(customization + file)
	if err == nil {
		err = yaml.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}
