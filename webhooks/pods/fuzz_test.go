package pods_test

import (
	"bytes"
	"encoding/json"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"

	"github.com/sidecarset/operator/internal/fixtures"
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
		Map()
}

// For any bytes, the handler gives one answer that the API server can use: a patch that applies to
// the Pod, or a refusal with a reason.
func FuzzInjector(f *testing.F) {
	handler := injector(storeOf(f, everyFeature()), &liveNamespaces{})
	for _, c := range fixtures.Cases(f) {
		f.Add(fixtures.Encode(f, request(c.Pod)))
	}
	f.Add([]byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":null}`))
	f.Add([]byte(`[[[[[`))
	f.Fuzz(func(t *testing.T, body []byte) {
		w := fixtures.Send(t, handler, bytes.NewReader(body))
		if w.Code >= 400 && w.Code < 500 {
			checkStatus(t, w, "sidecarset: ")
			return
		}
		answer := fixtures.DecodeReview(t, w)
		if answer.UID == "" || !answer.Allowed && (answer.Result == nil || answer.Result.Message == "") {
			t.Fatalf("an answer of no use: %s", w.Body)
		}
		var review struct {
			Request struct{ Object json.RawMessage }
		}
		if answer.Patch == nil || json.Unmarshal(body, &review) != nil {
			return
		}
		operations, err := jsonpatch.DecodePatch(answer.Patch)
		if err == nil {
			_, err = operations.Apply(review.Request.Object)
		}
		if err != nil {
			t.Errorf("the patch %s does not apply to %s: %v", answer.Patch, review.Request.Object, err)
		}
	})
}
