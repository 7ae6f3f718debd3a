package integration

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/conversion"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/hub"
	"github.com/sidecarset/operator/test/deploy"
)

// otherVersion has, for each served version, the other one.
var otherVersion = map[string]string{"v1alpha1": "v1beta1", "v1beta1": "v1alpha1"}

// If a client writes the same SidecarSet again, in either version and in whichever way, nothing
// changes, no new warning comes, and kubectl diff shows nothing.
func TestApplyingAgainChangesNothing(t *testing.T) {
	allowAnnotations(t)
	var stored, refused atomic.Int32
	t.Cleanup(func() {
		t.Logf("%d manifests were stored, %d refused", stored.Load(), refused.Load())
		if stored.Load() < 2*refused.Load() {
			t.Error("too many manifests were refused")
		}
	})
	manifests, forms := manifestsToApply(t)
	for i, manifest := range manifests {
		for version := range otherVersion {
			if i >= forms && version != "v1beta1" { // the forms show what conversion does
				continue
			}
			t.Run(fmt.Sprintf("%d %s as %s", i, hub.NameOf(manifest), version), func(t *testing.T) {
				t.Parallel()
				a := newAuthor(t, apart(asVersion(t, manifest, version), fmt.Sprintf("again-%d-%s", i, version)))
				first, err := a.apply(t)
				if apierrors.IsInvalid(err) {
					refused.Add(1)
					t.Logf("refused: %v", err)
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { deleteSidecarSet(t, first) })
				stored.Add(1)
				a.unchanged(t, "at first", "kubectl diff", func(a *author, t *testing.T) (*unstructured.Unstructured, error) { return a.apply(t, metav1.DryRunAll) })
				for _, way := range ways {
					a.unchanged(t, "at first", way.name, way.write)
				}
				other := newAuthor(t, asVersion(t, a.manifest, otherVersion[version]))
				other.warnings = a.warnings
				other.unchanged(t, "in "+other.version, "an update of what was read", (*author).update)
				other.unchanged(t, "in "+other.version, "server-side apply", (*author).applyByServer)
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

// manifestsToApply returns manifests with a value in each form that a round trip could change (the
// first ones, of that number), the samples, and the golden SidecarSets. It leaves out those that have
// no member that no manifest before them has.
func manifestsToApply(t *testing.T) (manifests []object, forms int) {
	t.Helper()
	manifests = formsOfValues(t)
	forms = len(manifests)
	for _, pattern := range []string{"config/samples/*.yaml", "config/samples/pod-annotations/sidecarset.yaml"} {
		files, err := filepath.Glob(filepath.Join(deploy.Root(), pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("samples: %v, %v", files, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			manifests = append(manifests, documents(t, string(text))...)
		}
	}
	for _, c := range fixtures.Cases(t) {
		manifests = append(manifests, c.Manifests...)
	}
	known := map[string]bool{}
	for _, manifest := range manifests[:forms] {
		addMembers(known, "", manifest)
	}
	others := slices.DeleteFunc(manifests[forms:], func(manifest object) bool {
		before := len(known)
		addMembers(known, "", manifest)
		return len(known) == before
	})
	return manifests[:forms+len(others)], forms
}

// formsOfValues are manifests with a value in each form that a round trip could change.
func formsOfValues(t *testing.T) []object {
	t.Helper()
	text, err := os.ReadFile("testdata/forms.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return documents(t, string(text))
}

// addMembers adds the paths of all members in a value.
func addMembers(paths map[string]bool, path string, value any) {
	switch value := value.(type) {
	case object:
		for name, member := range value {
			addMembers(paths, path+"."+name, member)
		}
	case []any:
		for _, element := range value {
			addMembers(paths, path+"[]", element)
		}
	default:
		paths[fmt.Sprintf("%s %T", path, value)] = true
	}
}

// documents returns the SidecarSets in a YAML file.
func documents(t *testing.T, text string) (sets []object) {
	t.Helper()
	for document := range strings.SplitSeq(text, "\n---\n") {
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
	sets := formsOfValues(t)
	manifest := ""
	for i, set := range sets[:3] {
		text, err := yaml.Marshal(apart(set, fmt.Sprintf("kubectl-%d", i)))
		if err != nil {
			t.Fatal(err)
		}
		manifest += "---\n" + string(text)
	}
	if _, err := cluster.Kubectl(t.Context(), manifest, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		name := fmt.Sprintf("kubectl-%d", i)
		t.Cleanup(func() {
			deleteSidecarSet(t, parse(t, "{apiVersion: apps.kruise.io/v1beta1, kind: SidecarSet, metadata: {name: "+name+"}}", ""))
		})
	}
	for _, command := range []string{"diff", "apply"} {
		if _, err := cluster.Kubectl(t.Context(), manifest, command, "-f", "-"); err != nil {
			t.Error(err)
		}
	}
	for i := range 3 {
		if generation := field(readAs(t, fmt.Sprintf("kubectl-%d", i), v1alpha1), "metadata", "generation"); generation != int64(1) {
			t.Errorf("kubectl-%d has generation %v", i, generation)
		}
	}
}
