package integration

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

// notStored are the golden cases whose SidecarSets validation refuses, each with a part of
// the message. The engine must handle them all the same, because another operator may have
// stored them.
var notStored = map[string]string{
	"canary-of-a-canary": "is itself a canary",
	"mount-of-a-volume-that-another-sidecarset-brings":  "own",
	"mount-of-a-volume-that-is-not-declared":            "of-the-app",
	"patch-pod-metadata-in-the-order-of-names":          "is an annotation of SidecarSet b",
	"patch-pod-metadata-leaves-our-own-annotations":     "kruise.io/sidecarset-injected-list",
	"paused-sidecarset-takes-no-name":                   "is a container of SidecarSet log",
	"refused-hot-upgrade-whose-name-a-sidecar-has":      "mesh-1",
	"refused-hot-upgrade-whose-names-are-too-long":      "a23456789",
	"refused-hot-upgrade-without-an-empty-image":        "hotUpgradeEmptyImage",
	"refused-name-that-one-sidecarset-has-twice":        "Duplicate value",
	"refused-recorded-revision-that-is-not-there":       "customVersion",
	"resources-policy-with-a-malformed-literal":         "64MB",
	"sidecarset-without-containers":                     "must have an element",
	"sidecarset-without-containers-beside-another":      "must have an element",
	"transfer-env-from-a-field-that-names-no-container": "metadata.name",
	"volume-named-by-two-sidecarsets":                   "shared",
}

// TestGoldenInjections runs each golden case through the API server: its
// SidecarSets are applied as the file has them, its Pod is created, and what is
// stored is the golden outcome with the API server's defaults.
func TestGoldenInjections(t *testing.T) {
	allowAnnotations(t)
	for _, c := range fixtures.Cases(t) {
		t.Run(c.Name, func(t *testing.T) {
			g := goldenCase{Case: c, want: c.Want(t), began: time.Now().Add(-time.Second)}
			g.prepare(t)
			if !g.createSidecarSets(t) {
				return
			}
			awaitEarlierObjects(t)
			if g.want.Refused != "" {
				g.checkRefused(t)
				return
			}
			g.checkInjected(t)
		})
	}
}

// allowAnnotations lets SidecarSets of golden cases set annotations.
func allowAnnotations(t *testing.T) {
	t.Helper()
	whitelist := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: deploy.Namespace, Name: "kruise-configuration"},
		Data:       map[string]string{"SidecarSet_PatchPodMetadata_WhiteList": `{"rules": [{"allowedAnnotationKeyExprs": [".*"]}]}`},
	}
	create(t, whitelist)
	t.Cleanup(func() {
		if err := api.Delete(context.WithoutCancel(t.Context()), whitelist); err != nil {
			t.Error(err)
		}
	})
}

// awaitEarlierObjects waits until every replica knows all SidecarSets as they are now. A
// replica learns of changes in their order. So it waits until every replica knows a new one.
func awaitEarlierObjects(t *testing.T) {
	t.Helper()
	last := newSidecarSet(t, "default", `
selector: {matchLabels: {golden: last}}
containers: [{name: last, image: "example.com/last:v1"}]
`)
	create(t, last)
	t.Cleanup(func() { deleteSidecarSet(t, last) })
	awaitInjected(t, last, "default", "golden=last")
}

type goldenCase struct {
	*fixtures.Case
	want  fixtures.Outcome
	began time.Time
	// revisionNames has, for each SidecarSet, the part of a record that names its
	// current revision here, and what the golden file has in its place.
	revisionNames []string
}

// prepare creates the Namespaces and the revisions of the case.
func (g *goldenCase) prepare(t *testing.T) {
	t.Helper()
	for name, set := range g.Namespaces {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: set}}
		if err := api.Create(t.Context(), namespace); client.IgnoreAlreadyExists(err) != nil {
			t.Fatal(err)
		}
	}
	for _, r := range g.Revisions {
		r.Namespace = deploy.Namespace
		create(t, r)
	}
	t.Cleanup(func() {
		for _, set := range g.SidecarSets { // this control plane has no garbage collector for their revisions
			name := set["metadata"].(map[string]any)["name"].(string)
			err := api.DeleteAllOf(context.WithoutCancel(t.Context()), &appsv1.ControllerRevision{},
				client.InNamespace(deploy.Namespace), client.MatchingLabels{appsv1beta1.LabelSidecarSetName: name})
			if err != nil {
				t.Error(err)
			}
		}
	})
}

// createSidecarSets creates the SidecarSets and waits until their revisions are recorded. It
// returns false if one of them is refused as notStored says.
func (g *goldenCase) createSidecarSets(t *testing.T) bool {
	t.Helper()
	problem, refused := notStored[g.Name]
	for _, manifest := range g.Manifests {
		set := &unstructured.Unstructured{Object: manifest}
		given, _, _ := unstructured.NestedString(manifest, "status", "latestRevision")
		if err := api.Create(t.Context(), set); err != nil {
			if !refused || !strings.Contains(err.Error(), problem) {
				t.Fatalf("creating SidecarSet %s: %v", set.GetName(), err)
			}
			return false
		}
		t.Cleanup(func() { deleteSidecarSet(t, set) })
		status := testkit.AwaitObserved(t, api, set.GetName()).Status
		if status.LatestRevision == "" {
			t.Fatalf("SidecarSet %s has no latest revision", set.GetName())
		}
		if given != "" {
			given = recordOf(given)
		}
		g.revisionNames = append(g.revisionNames, recordOf(status.LatestRevision), given)
	}
	if refused {
		t.Error("the SidecarSets were admitted")
	}
	return true
}

func recordOf(revision string) string { return `,"controllerRevision":"` + revision + `"` }

func (g *goldenCase) checkRefused(t *testing.T) {
	t.Helper()
	await.Eventually(t, "a refusal", func(ctx context.Context) error {
		_, err := g.submit(ctx, g.Pod, g.Namespace, client.DryRunAll)
		if err == nil || !strings.Contains(err.Error(), g.want.Refused) {
			return fmt.Errorf("got the error %q, want %q", fmt.Sprint(err), g.want.Refused)
		}
		return nil
	})
}

// checkInjected compares the stored Pod with the golden Pod. The test sends the golden Pod to
// kube-system, where nothing is injected, to get the API server's defaults.
func (g *goldenCase) checkInjected(t *testing.T) {
	t.Helper()
	want, err := g.submit(t.Context(), g.want.Pod, metav1.NamespaceSystem, client.DryRunAll)
	if err != nil {
		t.Fatalf("the golden Pod is refused: %v", err)
	}
	compare := func(ctx context.Context, options ...client.CreateOption) error {
		got, err := g.submit(ctx, g.Pod, g.Namespace, options...)
		if err != nil {
			return err
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			return fmt.Errorf("(-want +got):\n%s", diff)
		}
		return nil
	}
	await.Eventually(t, "the golden outcome", func(ctx context.Context) error {
		for range 2 * len(replicas) { // any replica may answer
			if err := compare(ctx, client.DryRunAll); err != nil {
				return err
			}
		}
		return nil
	})
	if err := compare(t.Context()); err != nil {
		t.Errorf("stored: %v", err)
	}
	stored := &unstructured.Unstructured{Object: map[string]any{}}
	stored.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	stored.SetNamespace(g.Namespace)
	stored.SetName(g.Pod["metadata"].(map[string]any)["name"].(string))
	if err := api.Delete(t.Context(), stored, client.GracePeriodSeconds(0)); err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}

// submit creates a Pod and returns its labels, its annotations and its spec. Values that
// differ between two runs are replaced by those of the golden files.
func (g *goldenCase) submit(ctx context.Context, object map[string]any, namespace string, options ...client.CreateOption) (map[string]any, error) {
	pod := (&unstructured.Unstructured{Object: object}).DeepCopy()
	pod.SetNamespace(namespace)
	if err := api.Create(ctx, pod, options...); err != nil {
		return nil, err
	}
	annotations := pod.GetAnnotations()
	for _, key := range []string{appsv1beta1.AnnotationHash, appsv1beta1.AnnotationHashWithoutImage} {
		if records, there := annotations[key]; there {
			annotations[key] = g.normal(records)
		}
	}
	return map[string]any{"labels": pod.GetLabels(), "annotations": annotations, "spec": pod.Object["spec"]}, nil
}

var timestamp = regexp.MustCompile(`"updateTimestamp":"([^"]*)"`)

// normal replaces the time of injection and the names of current revisions.
func (g *goldenCase) normal(records string) string {
	records = timestamp.ReplaceAllStringFunc(records, func(match string) string {
		at, err := time.Parse(time.RFC3339, timestamp.FindStringSubmatch(match)[1])
		if err != nil || at.Before(g.began) {
			return match
		}
		return `"updateTimestamp":"` + fixtures.Now.Format(time.RFC3339) + `"`
	})
	return strings.NewReplacer(g.revisionNames...).Replace(records)
}
