package conversion_test

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sidecarset/operator/internal/conversion"
)

// A SidecarSet of one version survives a visit to the other version, whatever else it has. What does
// not survive has no effect, and has a row in TestConvert.
func FuzzASidecarSetSurvivesAVisit(f *testing.F) {
	for seed := range uint64(64) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(seed, seed))
		for from, to := range map[string]string{alpha: beta, beta: alpha} {
			before := randomSidecarSet(random, from)
			visitor, err := conversion.Convert(runtime.DeepCopyJSON(before), to)
			if err != nil {
				t.Fatalf("Convert to %s: %v\n%v", to, err, before)
			}
			back, err := conversion.Convert(visitor, from)
			if err != nil {
				t.Fatalf("Convert to %s: %v\n%v", from, err, visitor)
			}
			if diff := cmp.Diff(before, back); diff != "" {
				t.Errorf("%s after a visit to %s (-before +after):\n%s", from, to, diff)
			}
		}
	})
}

// randomSidecarSet has members that conversion edits, and any others.
func randomSidecarSet(random *rand.Rand, apiVersion string) map[string]any {
	one := func(values ...any) any { return values[random.IntN(len(values))] }
	named := func(namespace string) any {
		return map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": namespace}}
	}
	spec, labels := map[string]any{}, map[string]any{"team": "a"}
	if selector := one(nil, map[string]any{}, map[string]any{"matchLabels": map[string]any{"team": "a"}}, named("ns1"), named("ns2")); selector != nil {
		spec["namespaceSelector"] = selector
	} else if apiVersion == alpha {
		spec["namespace"] = "ns1"
	}
	if version := one(nil, "v1", "v2"); version != nil && apiVersion == beta {
		spec["customVersion"] = version
	} else if version != nil {
		labels["apps.kruise.io/sidecarset-custom-version"] = version
	}
	metadata := map[string]any{"name": "mesh", "labels": labels, "annotations": map[string]any{"k": randomValue(random, 3)}}
	o := map[string]any{"apiVersion": apiVersion, "kind": "SidecarSet", "metadata": metadata, "spec": spec}
	for _, in := range []struct {
		object map[string]any
		member string
	}{{spec, "selector"}, {spec, "containers"}, {spec, "volumes"}, {spec, "invented"}, {o, "status"}, {o, "invented"}} {
		if random.IntN(2) == 0 {
			in.object[in.member] = randomValue(random, 3)
		}
	}
	return o
}

func randomValue(random *rand.Rand, depth int) any {
	kinds := 8
	if depth == 0 {
		kinds = 6 // scalars only
	}
	switch random.IntN(kinds) {
	case 0:
		return nil
	case 1:
		return random.Int64()
	case 2:
		return random.Float64()
	case 3:
		return random.IntN(2) == 0
	case 4, 5:
		return string(rune('a' + random.IntN(26)))
	case 6:
		list := make([]any, random.IntN(3))
		for i := range list {
			list[i] = randomValue(random, depth-1)
		}
		return list
	default:
		object := map[string]any{}
		for range random.IntN(4) {
			object[string(rune('a'+random.IntN(26)))] = randomValue(random, depth-1)
		}
		return object
	}
}
