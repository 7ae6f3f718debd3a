package pods_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/webhooks/pods"
	"github.com/sidecarset/operator/webhooks/server"
)

func TestInjectorGivesARecordedRevision(t *testing.T) {
	current := fixtures.Program(t, fixtures.SidecarSet("a").Select("app", "a").Container("side", "side:v1").
		Spec("updateStrategy", map[string]any{"partition": "50%"}).
		Spec("injectionStrategy", map[string]any{"revision": map[string]any{"customVersion": "v1", "policy": "Partial"}}).Map())
	history, err := inject.CompileRevision(current, &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{Name: "a-1",
			Labels:      map[string]string{appsv1beta1.LabelSidecarSetName: "a", appsv1beta1.LabelCustomVersion: "v1"},
			Annotations: map[string]string{appsv1beta1.AnnotationHash: "hash-a-1", appsv1beta1.AnnotationHashWithoutImage: "bare-a-1"},
		},
		Data:     runtime.RawExtension{Raw: []byte(`{"spec":{"$patch":"replace","containers":[{"name":"side","image":"side:recorded","resources":{}}]}}`)},
		Revision: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		draw    float64
		history map[string]*inject.Program
		want    string
	}{
		"drawn":                   {0.4, map[string]*inject.Program{"a": history}, "side:recorded"},
		"not drawn":               {0.6, map[string]*inject.Program{"a": history}, "side:v1"},
		"not drawn and not there": {0.6, nil, "side:v1"},
		"drawn and not there":     {0.4, nil, `"allowed":false`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			handler := server.Handler(newInjector(pods.Options{
				Snapshot:   func() *match.Snapshot { return match.Build([]*inject.Program{current}, nil).WithHistory(tc.history) },
				Namespaces: &liveNamespaces{},
				Clock:      clocktesting.NewFakePassiveClock(fixtures.Now),
				Draw:       func() float64 { return tc.draw },
			}).static)
			pod := fixtures.Pod("p").Label("app", "a").Container("app", "app:v1").Obj()
			w := fixtures.Send(t, handler, strings.NewReader(string(fixtures.Encode(t, request(pod)))))
			got := patchOf(t, w.Body.Bytes())
			if w.Code != http.StatusOK || !strings.Contains(got, tc.want) {
				t.Errorf("%d, want %s in %s", w.Code, tc.want, got)
			}
		})
	}
}

// patchOf returns the answer, followed by its patch in plain text.
func patchOf(t *testing.T, body []byte) string {
	t.Helper()
	var review struct{ Response struct{ Patch []byte } }
	if err := json.Unmarshal(body, &review); err != nil {
		t.Fatal(err)
	}
	return string(body) + string(review.Response.Patch)
}
