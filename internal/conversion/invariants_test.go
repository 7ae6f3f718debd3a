package conversion_test

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sidecarset/operator/internal/conversion"
)

const (
	customVersionLabel = "apps.kruise.io/sidecarset-custom-version"
	formAnnotation     = "sidecarset.io/v1alpha1-namespace-selector"
)

// Conversion touches five members and nothing else, never its input, and goes
// back and forth as the API promises: v1beta1 survives a visit to v1alpha1,
// except that a plain custom-version label turns into customVersion and that a
// customVersion which no label can have is lost; a v1alpha1 object comes back as it
// was, or without members that have no effect.
func FuzzConvertKeepsItsInvariants(f *testing.F) {
	for seed := range uint64(64) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(seed, seed))
		stored := randomSidecarSet(random, beta)
		older := convertIntact(t, stored, alpha)
		back := convertIntact(t, older, beta)
		if diff := cmp.Diff(afterVisit(stored), back); diff != "" {
			t.Errorf("v1beta1 after a visit to v1alpha1 (-want +got):\n%s", diff)
		}

		manifest := randomSidecarSet(random, alpha)
		stored = convertIntact(t, manifest, beta)
		older = convertIntact(t, stored, alpha)
		if diff := cmp.Diff(stored, convertIntact(t, older, beta)); diff != "" {
			t.Errorf("v1alpha1 does not converge (-first +second):\n%s", diff)
		}
		if diff := cmp.Diff(effective(manifest), selection(older)); diff != "" {
			t.Errorf("the namespaces of v1alpha1 (-manifest +read back):\n%s", diff)
		}
	})
}

// convertIntact converts and checks that the input and every member that is the
// same in both versions stayed what they were.
func convertIntact(t *testing.T, o map[string]any, to string) map[string]any {
	t.Helper()
	before := runtime.DeepCopyJSON(o)
	got, err := conversion.Convert(o, to)
	if err != nil {
		t.Fatalf("Convert to %s: %v\n%v", to, err, o)
	}
	if diff := cmp.Diff(before, o); diff != "" {
		t.Errorf("the input was changed (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(common(before), common(got)); diff != "" {
		t.Errorf("a member that is equal in both versions changed (-before +after):\n%s", diff)
	}
	return got
}

// common returns a copy without what conversion may edit.
func common(o map[string]any) map[string]any {
	o = runtime.DeepCopyJSON(o)
	delete(o, "apiVersion")
	spec, _ := o["spec"].(map[string]any)
	for _, name := range []string{"namespace", "namespaceSelector", "customVersion"} {
		delete(spec, name)
	}
	if len(spec) == 0 {
		delete(o, "spec")
	}
	metadata, _ := o["metadata"].(map[string]any)
	labels, _ := metadata["labels"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	delete(labels, customVersionLabel)
	delete(annotations, formAnnotation)
	for member, keys := range map[string]map[string]any{"labels": labels, "annotations": annotations} {
		if len(keys) == 0 {
			delete(metadata, member)
		}
	}
	if len(metadata) == 0 {
		delete(o, "metadata")
	}
	return o
}

// selection returns the members of a v1alpha1 spec that select namespaces.
func selection(o map[string]any) map[string]any {
	spec, _ := o["spec"].(map[string]any)
	selected := map[string]any{}
	for _, name := range []string{"namespace", "namespaceSelector"} {
		if value, ok := spec[name]; ok {
			selected[name] = value
		}
	}
	return selected
}

// effective returns the members of selection that have an effect.
func effective(o map[string]any) map[string]any {
	selected := selection(o)
	namespace, _ := selected["namespace"].(string)
	switch {
	case namespace == "", cmp.Equal(selected["namespaceSelector"], named(namespace)):
		delete(selected, "namespace")
	default:
		delete(selected, "namespaceSelector")
	}
	return selected
}

// named returns the namespaceSelector that selects one namespace.
func named(namespace string) any {
	return map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": namespace}}
}

// noLabel is a customVersion that cannot be a label's value.
const noLabel = "a b"

// afterVisit states the two things that a visit to v1alpha1 changes, and the
// notations that it does not keep apart: two of "no value", and the annotation about
// namespaceSelector where it has no effect.
func afterVisit(o map[string]any) map[string]any {
	o = runtime.DeepCopyJSON(o)
	spec, _ := o["spec"].(map[string]any)
	metadata, _ := o["metadata"].(map[string]any)
	labels, _ := metadata["labels"].(map[string]any)
	version, _ := spec["customVersion"].(string)
	label, labelled := labels[customVersionLabel].(string)
	if version == "" || version == noLabel {
		version = label
	}
	annotations, _ := metadata["annotations"].(map[string]any)
	_, annotated := annotations[formAnnotation]
	remembers := annotations[formAnnotation] == "true" && (cmp.Equal(spec["namespaceSelector"], named("ns1")) || cmp.Equal(spec["namespaceSelector"], named("ns2")))
	if annotated && !remembers {
		delete(annotations, formAnnotation)
		if len(annotations) == 0 {
			delete(metadata, "annotations")
		}
	}
	delete(spec, "namespace")
	delete(spec, "customVersion")
	if version != "" {
		if spec == nil {
			spec = map[string]any{}
			o["spec"] = spec
		}
		spec["customVersion"] = version
	}
	if labelled || version != "" {
		delete(labels, customVersionLabel)
		if len(labels) == 0 {
			delete(metadata, "labels")
		}
		if metadata == nil {
			o["metadata"] = map[string]any{}
		}
	}
	return o
}

func randomSidecarSet(random *rand.Rand, apiVersion string) map[string]any {
	text := func(values ...any) any { return values[random.IntN(len(values))] }
	o := map[string]any{"apiVersion": apiVersion, "kind": "SidecarSet"}
	spec, metadata, labels, annotations := map[string]any{}, map[string]any{}, map[string]any{}, map[string]any{}
	set := func(into map[string]any, key string, value func() any) {
		if random.IntN(2) == 0 {
			into[key] = value()
		}
	}
	anything := func() any { return randomValue(random, 3) }

	set(spec, "namespace", func() any { return text("", "ns1", nil) })
	set(spec, "namespaceSelector", func() any {
		return text(nil, map[string]any{}, map[string]any{"matchLabels": map[string]any{"team": "a"}}, named("ns1"), named("ns2"))
	})
	set(spec, "customVersion", func() any { return text("", "v1", "v2", noLabel, nil) })
	for _, key := range []string{"selector", "containers", "volumes", "invented"} {
		set(spec, key, anything)
	}
	set(labels, customVersionLabel, func() any { return text("", "v1", "v3") })
	set(labels, "team", func() any { return "a" })
	set(metadata, "labels", func() any { return text(nil, labels, labels, labels) })
	set(annotations, formAnnotation, func() any { return text("true", "false", nil) })
	set(annotations, "k", anything)
	set(metadata, "annotations", func() any { return text(nil, annotations, annotations, annotations) })
	set(metadata, "name", func() any { return "mesh" })
	set(o, "metadata", func() any { return text(nil, metadata, metadata, metadata) })
	set(o, "spec", func() any { return text(nil, spec, spec, spec) })
	set(o, "status", anything)
	set(o, "invented", anything)
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
