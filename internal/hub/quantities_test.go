package hub_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/sidecarset/operator/internal/hub"
	"github.com/sidecarset/operator/internal/jsonread"
)

// Any client can send a review, and these quantities take hours to parse. This test ends
// because they are not parsed.
func TestQuantitiesThatTakeHoursAreRefused(t *testing.T) {
	places := map[string]string{
		"spec.containers[0].resources.limits.cpu":                                            `"containers":[{"name":"a","resources":{"limits":{"cpu":%s}}}]`,
		"spec.initContainers[0].resources.requests.memory":                                   `"initContainers":[{"name":"a","resources":{"requests":{"memory":%s}}}]`,
		"spec.containers[0].env[0].valueFrom.resourceFieldRef.divisor":                       `"containers":[{"name":"a","env":[{"name":"E","valueFrom":{"resourceFieldRef":{"resource":"limits.cpu","divisor":%s}}}]}]`,
		"spec.volumes[0].emptyDir.sizeLimit":                                                 `"volumes":[{"name":"v","emptyDir":{"sizeLimit":%s}}]`,
		"spec.volumes[0].downwardAPI.items[0].resourceFieldRef.divisor":                      `"volumes":[{"name":"v","downwardAPI":{"items":[{"path":"p","resourceFieldRef":{"resource":"limits.cpu","divisor":%s}}]}}]`,
		"spec.volumes[0].projected.sources[0].downwardAPI.items[0].resourceFieldRef.divisor": `"volumes":[{"name":"v","projected":{"sources":[{"downwardAPI":{"items":[{"path":"p","resourceFieldRef":{"resource":"limits.cpu","divisor":%s}}]}}]}}]`,
		"spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources.requests.storage":      `"volumes":[{"name":"v","ephemeral":{"volumeClaimTemplate":{"spec":{"resources":{"requests":{"storage":%s}}}}}}]`,
	}
	for path, member := range places {
		for _, version := range []string{"v1beta1", "v1alpha1"} {
			for value, want := range map[string]error{
				`"1111111111111111111e900000000"`: jsonread.ErrLongQuantity, `"1e-900000000"`: jsonread.ErrLongQuantity,
				`1e-900000000`: nil, `"1.5"`: nil, `2`: nil,
				`"1e-900000000","cpu":"1","memory":"1","storage":"1","divisor":"1","sizeLimit":"1"`: nil, // the last one counts
			} {
				text := fmt.Sprintf(`{"apiVersion":"apps.kruise.io/%s","kind":"SidecarSet","metadata":{"name":"log"},"spec":{`+member+`}}`, version, value)
				object, err := hub.Read([]byte(text))
				if err != nil {
					t.Fatal(err)
				}
				object.Default()
				_, err = object.Hub()
				var where *hub.MemberError
				if !errors.Is(err, want) || want != nil && (!errors.As(err, &where) || where.Path != path) {
					t.Errorf("%s: %s in %s: %v, want %v", version, value, path, err, want)
				}
			}
		}
	}
}
