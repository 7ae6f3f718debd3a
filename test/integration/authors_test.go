package integration

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/hub"
)

// author reads and writes one SidecarSet in one version, as clients do.
type author struct {
	version  string
	manifest object
	sets     dynamic.ResourceInterface
	warnings []string
}

// write writes the SidecarSet, and returns it as it is stored.
type write func(*author, *testing.T) (*unstructured.Unstructured, error)

func newAuthor(t *testing.T, manifest object) *author {
	t.Helper()
	a := &author{version: strings.TrimPrefix(manifest["apiVersion"].(string), "apps.kruise.io/"), manifest: manifest}
	config := rest.CopyConfig(cluster.Config())
	config.WarningHandler, config.QPS = a, -1
	c, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	a.sets = c.Resource(schema.GroupVersionResource{Group: appsv1beta1.GroupVersion.Group, Version: a.version, Resource: "sidecarsets"})
	return a
}

// HandleWarningHeader implements rest.WarningHandler. It leaves out warnings that are not about
// the content but about a busy machine: the leader has not written the Pod webhook yet, or the API
// server has not answered the operator in time.
func (a *author) HandleWarningHeader(_ int, _ string, text string) {
	if strings.HasPrefix(text, "not Ready yet") || strings.Contains(text, "could not check") || strings.HasPrefix(text, "could not look up") {
		return
	}
	a.warnings = append(a.warnings, text)
}

func (a *author) name() string { return hub.NameOf(a.manifest) }

func (a *author) get(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	live, err := a.sets.Get(t.Context(), a.name(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return live
}

// apply is kubectl apply: a merge of the manifest, of the one that was applied last, and of the
// object that is read. kubectl starts too slowly to be run for each of them.
func (a *author) apply(t *testing.T, dryRun ...string) (*unstructured.Unstructured, error) {
	t.Helper()
	applied := (&unstructured.Unstructured{Object: a.manifest}).DeepCopy()
	text, err := json.Marshal(a.manifest)
	if err != nil {
		t.Fatal(err)
	}
	annotations := applied.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[corev1.LastAppliedConfigAnnotation] = string(text) + "\n"
	applied.SetAnnotations(annotations)

	live, err := a.sets.Get(t.Context(), a.name(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return a.sets.Create(t.Context(), applied, metav1.CreateOptions{FieldManager: "kubectl-client-side-apply", DryRun: dryRun})
	}
	if err != nil {
		return nil, err
	}
	patch, err := jsonmergepatch.CreateThreeWayJSONMergePatch([]byte(live.GetAnnotations()[corev1.LastAppliedConfigAnnotation]), asJSONText(t, applied.Object), asJSONText(t, live.Object))
	if err != nil {
		t.Fatal(err)
	}
	return a.sets.Patch(t.Context(), a.name(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "kubectl-client-side-apply", DryRun: dryRun})
}

func kubectlApply(a *author, t *testing.T) (*unstructured.Unstructured, error) { return a.apply(t) }

// applyByServer is kubectl apply --server-side, as GitOps programs do it.
func (a *author) applyByServer(t *testing.T) (*unstructured.Unstructured, error) {
	t.Helper()
	return a.sets.Patch(t.Context(), a.name(), types.ApplyPatchType, asJSONText(t, a.manifest), metav1.PatchOptions{FieldManager: "gitops-" + a.version, Force: new(true)})
}

// update is an update of what was read.
func (a *author) update(t *testing.T) (*unstructured.Unstructured, error) {
	t.Helper()
	return a.put(t, func(live *unstructured.Unstructured) *unstructured.Unstructured { return live })
}

// replace is kubectl replace with the manifest.
func (a *author) replace(t *testing.T) (*unstructured.Unstructured, error) {
	t.Helper()
	return a.put(t, func(live *unstructured.Unstructured) *unstructured.Unstructured {
		set := (&unstructured.Unstructured{Object: a.manifest}).DeepCopy()
		set.SetResourceVersion(live.GetResourceVersion())
		return set
	})
}

func (a *author) put(t *testing.T, set func(live *unstructured.Unstructured) *unstructured.Unstructured) (stored *unstructured.Unstructured, err error) {
	patient := wait.Backoff{Steps: 14, Duration: 10 * time.Millisecond, Factor: 1.5, Jitter: 0.5}
	err = retry.RetryOnConflict(patient, func() error { // the operator writes the status
		live, err := a.sets.Get(t.Context(), a.name(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		stored, err = a.sets.Update(t.Context(), set(live), metav1.UpdateOptions{})
		return err
	})
	return stored, err
}

// applyWhatIsRead is kubectl get -o yaml | kubectl apply -f -, without the members that belong
// to the stored object and not to a manifest.
func (a *author) applyWhatIsRead(t *testing.T) (*unstructured.Unstructured, error) {
	t.Helper()
	live := a.get(t)
	for _, name := range []string{"managedFields", "resourceVersion", "uid", "creationTimestamp", "generation"} {
		unstructured.RemoveNestedField(live.Object, "metadata", name)
	}
	return (&author{version: a.version, manifest: live.Object, sets: a.sets}).apply(t)
}

func asJSONText(t *testing.T, o object) []byte {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// content returns what kubectl diff would compare and what a client has to find unchanged.
func content(set *unstructured.Unstructured) object {
	annotations := maps.Clone(set.GetAnnotations())
	delete(annotations, corev1.LastAppliedConfigAnnotation)
	return object{"spec": set.Object["spec"], "labels": set.GetLabels(), "annotations": annotations, "generation": set.GetGeneration()}
}

// unchanged fails the test if do changes the SidecarSet or gives a warning that the author
// did not have before.
func (a *author) unchanged(t *testing.T, when, way string, do write) {
	t.Helper()
	before, known := a.get(t), slices.Clone(a.warnings)
	after, err := do(a, t)
	if err != nil {
		t.Errorf("%s, %s: %v", when, way, err)
		return
	}
	if diff := cmp.Diff(content(before), content(after)); diff != "" {
		t.Errorf("%s, %s (-before +after):\n%s", when, way, diff)
	}
	for _, warning := range a.warnings {
		if !slices.Contains(known, warning) {
			t.Errorf("%s, %s: a new warning: %s", when, way, warning)
		}
	}
}
