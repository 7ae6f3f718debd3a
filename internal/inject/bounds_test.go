package inject_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
)

// listOf is a JSON list of n elements.
func listOf(n int, element func(i int) string) json.RawMessage {
	var b strings.Builder
	for i := range n {
		b.WriteString(map[bool]string{true: "[", false: ","}[i == 0])
		b.WriteString(element(i))
	}
	return json.RawMessage(b.String() + "]")
}

func inputOf(t *testing.T, app inject.ContainerView, sets ...map[string]any) inject.Input {
	t.Helper()
	in := fixtures.Input(t, fixtures.Pod("web").Label("app", "web").Obj(), sets...)
	app.Name, app.Image = "app", "app:v1"
	in.Pod.Containers = []inject.ContainerView{app}
	return in
}

// sharing are n sidecars that share everything.
func sharing(n int) map[string]any {
	set := fixtures.SidecarSet("s")
	for i := range n {
		set.Container(fmt.Sprint("c", i), "c:1").With("shareVolumePolicy", enabled).With("shareVolumeDevicePolicy", enabled)
	}
	return set.Map()
}

// A Pod above the bounds is refused before its parts are decoded, or before they are copied
// into each sidecar.
func TestPodPartsCopiedIntoSidecarsAreBounded(t *testing.T) {
	mounts := func(n int) inject.ContainerView {
		return inject.ContainerView{VolumeMounts: listOf(n, func(i int) string { return fmt.Sprintf(`{"mountPath":"/%05x"}`, i) })}
	}
	plain := fixtures.SidecarSet("s").Container("c", "c:1").Map()
	tests := map[string]struct {
		raw     inject.ContainerView
		set     map[string]any
		refused string
	}{
		"1 MB":                     {raw: mounts(40_000), set: sharing(1)},
		"7 MB":                     {raw: mounts(300_000), set: sharing(1), refused: "ports of the Pod's containers have"},
		"7 MB of env":              {raw: inject.ContainerView{Env: mounts(300_000).VolumeMounts}, set: sharing(1), refused: "ports of the Pod's containers have"},
		"7 MB that no sidecar has": {raw: mounts(300_000), set: plain, refused: "ports of the Pod's containers have"},
		"1 MB in 7 sidecars":       {raw: mounts(40_000), set: sharing(7)},
		"1 MB in 100 sidecars":     {raw: mounts(40_000), set: sharing(100), refused: "the limit for these sidecars is 166111"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := inject.Compute(inputOf(t, tc.raw, tc.set))
			var size *inject.SizeError
			if errors.As(err, &size) != (tc.refused != "") || err != nil && !strings.Contains(err.Error(), tc.refused) {
				t.Fatalf("Compute: %v", err)
			}
		})
	}
}

// The first error is the only one, and is short, whatever the Pod has.
func TestResourcesThatCannotBeReadGiveOneShortError(t *testing.T) {
	for name, resources := range map[string]string{"a number": "7", "not a quantity": `{"limits":{"cpu":"x"}}`, "a list": "[" + strings.Repeat("[", 100) + strings.Repeat("]", 101)} {
		t.Run(name, func(t *testing.T) {
			in := inputOf(t, inject.ContainerView{}, fixtures.SidecarSet("s").Container("c", "c:1").With("resourcesPolicy", halfCPU).Map())
			for range 1000 {
				view := inject.ContainerView{Name: strings.Repeat("x", 100_000), Resources: json.RawMessage(resources)}
				in.Pod.Containers = append(in.Pod.Containers, view)
			}
			_, err := inject.Compute(in)
			var problem *inject.ResourcesError
			if !errors.As(err, &problem) || len(err.Error()) > 500 {
				t.Fatalf("Compute: %.600v", err)
			}
			if n := strings.Count(err.Error(), "reading the resources"); n != 1 {
				t.Errorf("%d errors, want the first one: %v", n, err)
			}
		})
	}
}

// A name that no container can have is not matched: one of 7 MB would take a minute.
func TestNamesThatAreTooLongAreNoTargets(t *testing.T) {
	policy := map[string]any{"targetContainersMode": "sum", "targetContainersNameRegex": "(x?){900}y", "resourcesExpr": map[string]any{"limits": map[string]any{"cpu": "cpu"}}}
	in := inputOf(t, inject.ContainerView{}, fixtures.SidecarSet("s").Container("c", "c:1").With("resourcesPolicy", policy).Map())
	in.Pod.Containers[0].Name = strings.Repeat("x", 7<<20) + "y"
	if _, err := inject.Compute(in); err == nil || !strings.Contains(err.Error(), "no containers match") {
		t.Errorf("Compute: %.200v", err)
	}
}

// The annotations of a Pod that an API server accepts have 256 KiB.
func TestAnAnnotationThatIsMergedIsBounded(t *testing.T) {
	set := fixtures.SidecarSet("s").Container("c", "c:1").Spec("patchPodMetadata", []any{map[string]any{
		"annotations": map[string]any{"a": `{"b":1}`}, "patchPolicy": "MergePatchJson",
	}}).Map()
	for size, refused := range map[int]bool{200 << 10: false, 300 << 10: true, 7 << 20: true} {
		value := `{"l":[` + strings.Repeat("0,", size/2) + `0]}`
		_, err := inject.Compute(fixtures.Input(t, app().Annotation("a", value).Obj(), set))
		var metadata *inject.MetadataError
		if errors.As(err, &metadata) != refused || refused && (!metadata.InPod || len(err.Error()) > 500) {
			t.Errorf("%d bytes: %.300v", size, err)
		}
	}
}
