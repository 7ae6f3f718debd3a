package pods_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/sidecarset/operator/internal/fixtures"
)

// Any Pod can send such reviews, within the length of a body. The SidecarSet takes from the
// Pod everything that a SidecarSet can take.
func TestAMadeUpPodOfASharingSidecarSetIsRefused(t *testing.T) {
	enabled := map[string]any{"type": "enabled"}
	set := fixtures.SidecarSet("s").Select("app", "web")
	for _, name := range []string{"a", "b", "c"} {
		set.Container(name, "i:1").With("shareVolumePolicy", enabled).With("shareVolumeDevicePolicy", enabled).
			With("transferEnv", []any{map[string]any{"sourceContainerName": "app", "envName": "A"}}).
			With("resourcesPolicy", map[string]any{"targetContainersMode": "sum", "resourcesExpr": map[string]any{"limits": map[string]any{"cpu": "cpu"}}})
	}
	handler := injector(storeOf(t, set.Map()), nil)
	many := func(n int, element string) string { return "[" + strings.Repeat(element+",", n-1) + element + "]" }
	container := func(members string) string { return `{"containers":[{"name":"app",` + members + `}]}` }
	tests := map[string]struct {
		spec string
		code int32
		want string
	}{
		"containers without resources": {`{"containers":[{"resources":7},` + many(2_300_000, "{}")[1:] + `}`, http.StatusRequestEntityTooLarge, "spec.containers: the list has more than 1000 elements"},
		"containers with wrong ones":   {`{"containers":` + many(1000, `{"resources":{"limits":{"cpu":"x"}}}`) + `}`, http.StatusUnprocessableEntity, "reading the resources of container"},
		"init containers":              {`{"initContainers":` + many(1001, "{}") + `}`, http.StatusRequestEntityTooLarge, "spec.initContainers"},
		"volumes":                      {`{"volumes":` + many(2_000_000, "{}") + `}`, http.StatusRequestEntityTooLarge, "spec.volumes"},
		"mounts":                       {container(`"volumeMounts":` + many(350_000, `{"mountPath":"/0"}`)), http.StatusUnprocessableEntity, "bytes as JSON, and the limit for these sidecars is"},
		"devices":                      {container(`"volumeDevices":` + many(350_000, `{"devicePath":"/"}`)), http.StatusUnprocessableEntity, "bytes as JSON, and the limit for these sidecars is"},
		"variables":                    {container(`"env":` + many(350_000, `{"name":"A"}`)), http.StatusUnprocessableEntity, "bytes as JSON, and the limit for these sidecars is"},
		"a sub-path of variables":      {container(`"volumeMounts":[{"mountPath":"/","subPathExpr":"` + strings.Repeat("$(A)", 1_500_000) + `"}]`), http.StatusUnprocessableEntity, "bytes as JSON, and the limit for these sidecars is"},
		"a long name":                  {`{"containers":[{"name":"` + strings.Repeat("x", 6<<20) + `","resources":7}]}`, http.StatusUnprocessableEntity, "reading the resources of container"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			body := `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"uid-1","resource":{"group":"","version":"v1","resource":"pods"},` +
				`"operation":"CREATE","namespace":"default","object":{"metadata":{"name":"p","labels":{"app":"web"}},"spec":` + tc.spec + `}}}`
			answer := fixtures.Review(t, handler, []byte(body))
			if answer.Allowed || answer.Result.Code != tc.code || !strings.Contains(answer.Result.Message, tc.want) || len(answer.Result.Message) > 600 {
				t.Errorf("allowed: %v, %.600v; want %d %s", answer.Allowed, answer.Result, tc.code, tc.want)
			}
		})
	}
}
