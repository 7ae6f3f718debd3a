package snapshot

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/sidecarset/operator/internal/fixtures"
)

func TestTheCacheKeepsWhatDecidesAboutPods(t *testing.T) {
	set := &unstructured.Unstructured{Object: fixtures.SidecarSet("a").Select("app", "web").Container("side", "side:v1").Map()}
	set.SetAnnotations(map[string]string{"kept": "yes", corev1.LastAppliedConfigAnnotation: "{}"})
	set.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "kubectl"}})
	for range 2 { // a second time changes nothing
		if _, err := PackSidecarSet(set); err != nil {
			t.Fatal(err)
		}
	}
	spec, packed := set.DeepCopy().Object["spec"].(string) // readers of the cache get copies
	if annotations := set.GetAnnotations(); len(annotations) != 1 || annotations["kept"] != "yes" || set.GetManagedFields() != nil || !packed || !strings.Contains(spec, `"side:v1"`) {
		t.Errorf("it is %v", set)
	}
	strip := CacheOptions("ours").DefaultTransform
	if got, err := strip(toolscache.DeletedFinalStateUnknown{Key: "a"}); err != nil || got == nil {
		t.Errorf("got %v, %v for something that is not an object", got, err)
	}
}
