package integration

import (
	"context"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/conversion"
	"github.com/sidecarset/operator/internal/hub"
	"github.com/sidecarset/operator/test/testkit"
)

// If a client writes the same SidecarSet again, in either version and in whichever way, nothing
// changes, no new warning comes, and kubectl diff shows nothing.
func TestApplyingAgainChangesNothing(t *testing.T) {
	for i, manifest := range formsOfValues(t) {
		for version, other := range map[string]string{"v1alpha1": "v1beta1", "v1beta1": "v1alpha1"} {
			t.Run(fmt.Sprintf("%d %s as %s", i, hub.NameOf(manifest), version), func(t *testing.T) {
				t.Parallel()
				a := newAuthor(t, apart(asVersion(t, manifest, version), fmt.Sprintf("again-%d-%s", i, version)))
				first, err := a.apply(t)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { deleteSidecarSet(t, first) })
				a.unchanged(t, "at first", "kubectl diff", func(a *author, t *testing.T) (*unstructured.Unstructured, error) { return a.apply(t, metav1.DryRunAll) })
				for _, way := range ways {
					a.unchanged(t, "at first", way.name, way.write)
				}
				b := newAuthor(t, asVersion(t, a.manifest, other))
				b.warnings = a.warnings
				b.unchanged(t, "in "+b.version, "an update of what was read", (*author).update)
				b.unchanged(t, "in "+b.version, "server-side apply", (*author).applyByServer)
				a.unchanged(t, "after that", "kubectl apply", kubectlApply)
				a.unchanged(t, "after that", "server-side apply", (*author).applyByServer)
			})
		}
	}
}

// ways are the ways in which clients write what they have written before.
var ways = []struct {
	name  string
	write write
}{
	{"kubectl apply", kubectlApply},
	{"server-side apply", (*author).applyByServer},
	{"server-side apply again", (*author).applyByServer},
	{"an update of what was read", (*author).update},
	{"kubectl replace", (*author).replace},
	{"kubectl apply after kubectl replace", kubectlApply},
	{"kubectl apply of what was read", (*author).applyWhatIsRead},
}

// asVersion returns the manifest in a version.
func asVersion(t *testing.T, manifest object, version string) object {
	t.Helper()
	converted, err := conversion.Convert(runtime.DeepCopyJSON(manifest), "apps.kruise.io/"+version)
	if err != nil {
		t.Fatal(err)
	}
	return converted
}

// apart gives a SidecarSet a name of its own, and a label of its own that Pods must have. So no
// rule about other SidecarSets applies to it.
func apart(manifest object, name string) object {
	set := &unstructured.Unstructured{Object: manifest}
	set.SetName(name)
	_ = unstructured.SetNestedField(manifest, name, "spec", "selector", "matchLabels", "again") // fails for manifests that are refused
	return manifest
}

// formsOfValues are manifests with a value in each form that a round trip could change.
func formsOfValues(t *testing.T) (sets []object) {
	t.Helper()
	text, err := os.ReadFile("testdata/forms.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		if set := parse(t, document, "NS"); set.GetKind() == "SidecarSet" {
			sets = append(sets, set.Object)
		}
	}
	return sets
}

// If the author of a v1alpha1 manifest changes how it selects namespaces, the stored SidecarSet
// follows, though the clients merge the manifest into what they read.
func TestChangesOfNamespacesInV1alpha1(t *testing.T) {
	selects := func(keysAndValues ...any) object { // a namespaceSelector
		labels := object{}
		for i := 0; i < len(keysAndValues); i += 2 {
			labels[keysAndValues[i].(string)] = keysAndValues[i+1]
		}
		return object{"matchLabels": labels}
	}
	named := func(name string) object { return selects(corev1.LabelMetadataName, name) }
	forms := map[string]struct {
		members object
		stored  any
	}{
		"nothing":          {object{}, nil},
		"namespace a":      {object{"namespace": "a"}, named("a")},
		"selector of b":    {object{"namespaceSelector": named("b")}, named("b")},
		"selector of team": {object{"namespaceSelector": selects("team", "a")}, selects("team", "a")},
	}
	writes := map[string]write{
		"apply":             kubectlApply,
		"server-side-apply": (*author).applyByServer,
		"replace":           (*author).replace,
	}
	for way, write := range writes {
		for from := range forms {
			t.Run(way+" from "+from, func(t *testing.T) {
				t.Parallel()
				a := newAuthor(t, formsOfValues(t)[0])
				set := func(form string) {
					spec := a.manifest["spec"].(object)
					delete(spec, "namespace")
					delete(spec, "namespaceSelector")
					maps.Copy(spec, runtime.DeepCopyJSON(forms[form].members))
				}
				apart(a.manifest, strings.ReplaceAll(way+" "+from, " ", "-"))
				set(from)
				create := write
				if way == "replace" {
					create = writes["apply"]
				}
				first, err := create(a, t)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { deleteSidecarSet(t, first) })
				for to := range forms {
					for _, form := range []string{to, from} {
						set(form)
						if _, err := write(a, t); err != nil {
							t.Fatalf("%s to %s: %v", from, to, err)
						}
						if diff := cmp.Diff(forms[form].stored, field(readAs(t, a.name(), appsv1beta1.Kind), "spec", "namespaceSelector")); diff != "" {
							t.Errorf("%s to %s: stored as %s (-want +got):\n%s", from, to, form, diff)
						}
					}
				}
				a.unchanged(t, from, "again", write)
				if len(a.warnings) > 0 {
					t.Errorf("warnings: %q", a.warnings)
				}
			})
		}
	}
}

// kubectl itself, because the other tests only do what it does.
func TestKubectlAppliesV1alpha1Again(t *testing.T) {
	manifest := ""
	for i, set := range formsOfValues(t)[:3] {
		text, err := yaml.Marshal(apart(set, fmt.Sprint("kubectl-", i)))
		if err != nil {
			t.Fatal(err)
		}
		manifest += "---\n" + string(text)
	}
	t.Cleanup(func() { _, _ = cluster.Kubectl(context.WithoutCancel(t.Context()), manifest, "delete", "-f", "-") })
	for _, command := range []string{"apply", "diff", "apply"} {
		testkit.Kubectl(t, cluster, manifest, command, "-f", "-")
	}
	for i := range 3 {
		if generation := field(readAs(t, fmt.Sprint("kubectl-", i), v1alpha1), "metadata", "generation"); generation != int64(1) {
			t.Errorf("kubectl-%d has generation %v", i, generation)
		}
	}
}
