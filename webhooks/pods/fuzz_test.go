package pods_test

import (
	"bytes"
	"encoding/json"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
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

// everyFeature is a SidecarSet that uses every feature. Its sidecars take from the Pod
// everything that they can, and half of the Pods get a recorded revision.
func everyFeature() map[string]any {
	type members = map[string]any
	enabled := members{"type": "enabled"}
	return fixtures.SidecarSet("all").Select("app", "web").
		Container("mesh", "mesh:v1").Mount("v", "/v").Device("d", "/dev/d").
		With("shareVolumePolicy", enabled).With("shareVolumeDevicePolicy", enabled).
		With("upgradeStrategy", members{"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "empty:v1"}).
		With("transferEnv", []any{
			members{"sourceContainerName": "app", "envNames": []any{"A", "B"}},
			members{"sourceContainerNameFrom": members{"fieldRef": members{"fieldPath": "metadata.labels['main']"}}, "envName": "C"},
		}).
		With("resourcesPolicy", members{"targetContainersMode": "sum", "resourcesExpr": members{"limits": members{"cpu": "max(cpu*50%, 50m)", "memory": "memory+1Mi"}}}).
		Container("after", "after:v1").AfterApp().
		InitContainer("init", "init:v1").BeforeApp().
		Native("native", "native:v1").With("shareVolumePolicy", enabled).
		Volume("v").VolumeOf("d", "persistentVolumeClaim", members{"claimName": "d"}).
		PullSecret("s").
		PatchAnnotation("Retain", "a", "1").PatchAnnotation("MergePatchJson", "b", `{"c":{"d":null}}`).
		Spec("updateStrategy", members{"type": "RollingUpdate", "partition": "50%"}).
		Spec("injectionStrategy", members{"revision": members{"revisionName": "all-1", "policy": "Partial"}}).
		Map()
}

// For any Pod, a SidecarSet with every feature gives a patch that applies, or a refusal with
// a reason.
func FuzzInjectorWithEveryFeature(f *testing.F) {
	current := fixtures.Program(f, everyFeature())
	recorded := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{Name: "all-1", Labels: map[string]string{appsv1beta1.LabelSidecarSetName: "all"}},
		Data:       runtime.RawExtension{Raw: []byte(`{"spec":{"$patch":"replace","containers":[{"name":"mesh","image":"mesh:v0","shareVolumePolicy":{"type":"enabled"}}]}}`)},
	}
	program, err := inject.CompileRevision(current, recorded)
	if err != nil {
		f.Fatal(err)
	}
	catalog := match.Build([]*inject.Program{current}, nil).WithHistory(map[string]*inject.Program{"all": program})
	for _, c := range fixtures.Cases(f) {
		f.Add(fixtures.Encode(f, c.Pod), len(c.Name)%2 == 0)
	}
	f.Fuzz(func(t *testing.T, pod []byte, old bool) {
		if !json.Valid(pod) {
			return
		}
		handler := server.Handler(newInjector(pods.Options{
			Snapshot: func() *match.Snapshot { return catalog }, Namespaces: &liveNamespaces{},
			Clock: clocktesting.NewFakePassiveClock(fixtures.Now),
			Draw: func() float64 {
				if old {
					return 0.1
				}
				return 0.9
			},
		}).static)
		envelope := request(nil)
		envelope["request"].(map[string]any)["object"] = json.RawMessage(pod)
		w := fixtures.Send(t, handler, bytes.NewReader(fixtures.Encode(t, envelope)))
		if w.Code >= 400 && w.Code < 500 {
			checkStatus(t, w, "sidecarset: ")
			return
		}
		answer := fixtures.DecodeReview(t, w)
		if !answer.Allowed && (answer.Result == nil || answer.Result.Message == "") {
			t.Fatalf("a refusal that says nothing: %s", w.Body)
		}
		if answer.Patch == nil {
			return
		}
		operations, err := jsonpatch.DecodePatch(answer.Patch)
		if err == nil {
			_, err = operations.Apply(pod)
		}
		if err != nil {
			t.Errorf("the patch %s does not apply to %s: %v", answer.Patch, pod, err)
		}
	})
}
