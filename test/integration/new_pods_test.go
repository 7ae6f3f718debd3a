package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/testkit"
)

const (
	firstImage, goodImage = "example.com/side:v1", "example.com/side:good"
	badImage              = "example.com/side:bad" // does not start
	// Images that work for a time, of which a second stands for ten.
	breaksAfter20, breaksAfter50 = "example.com/side:breaks-20", "example.com/side:breaks-50"
)

// newStableFleet creates a fleet whose new Pods get the stable revision.
func newStableFleet(t *testing.T, pods int) *fleet {
	t.Helper()
	f := newFleet(t, rolling, pods, &testkit.Kubelet{
		Pull:    20 * time.Millisecond,
		Missing: func(image string) bool { return image == badImage },
		Breaks: func(image string) time.Duration {
			return map[string]time.Duration{breaksAfter20: 2 * time.Second, breaksAfter50: 5 * time.Second}[image]
		},
		ShowsNotReady: func(*corev1.Pod) bool { return true },
	})
	set := f.reference(appsv1beta1.Kind.Version)
	patch(t, set, map[string]any{"metadata": map[string]any{"annotations": map[string]any{appsv1beta1.AnnotationNewPods: appsv1beta1.StableNewPods}}})
	f.await(t, "the stable revision", func(set *appsv1beta1.SidecarSet) error {
		if s := set.Status; s.StableRevision == "" || s.StableRevision != s.LatestRevision {
			return fmt.Errorf("it is %q, and the latest one is %q", s.StableRevision, s.LatestRevision)
		}
		return testkit.Ready(set)
	})
	return f
}

// reference names the SidecarSet for a request in an API version.
func (f *fleet) reference(version string) *unstructured.Unstructured {
	set := &unstructured.Unstructured{}
	kind := appsv1beta1.Kind
	kind.Version = version
	set.SetGroupVersionKind(kind)
	set.SetName(f.set.GetName())
	return set
}

// createPods creates new Pods, and counts them by the image that they got.
func (f *fleet) createPods(t *testing.T, prefix string, n int) map[string]int {
	t.Helper()
	count := map[string]int{}
	for i := range n {
		p := pod(f.namespace, fmt.Sprintf("%s-%02d", prefix, i), "app=web")
		p.Spec.TerminationGracePeriodSeconds = new(int64(0))
		create(t, p)
		count[testkit.WantedImage(p, "side")]++
	}
	return count
}

// awaitHeld waits until the condition Ready says that new Pods get an earlier revision, and that no Pod is
// available with the latest one.
func (f *fleet) awaitHeld(t *testing.T) (held *appsv1beta1.SidecarSet) {
	t.Helper()
	f.await(t, "RevisionNotStable", func(set *appsv1beta1.SidecarSet) error {
		c := meta.FindStatusCondition(set.Status.Conditions, appsv1beta1.ConditionReady)
		if c == nil || c.Reason != appsv1beta1.ReasonRevisionNotStable || c.Status != "False" || c.ObservedGeneration != set.Generation || !strings.Contains(c.Message, ": 0 of ") {
			return fmt.Errorf("the condition Ready of generation %d is %+v", set.Generation, c)
		}
		held = set
		return nil
	})
	return held
}

// A bad image reaches no new Pod, from the answer to the edit on, and two running Pods at most. A good image
// reaches new Pods when three Pods are available with it.
func TestNewPodsGetTheStableRevision(t *testing.T) {
	t.Parallel()
	f := newStableFleet(t, 6)
	f.setImage(t, badImage)
	if got := f.createPods(t, "at-once", 15); got[firstImage] != 15 {
		t.Errorf("right after the edit, new Pods got %v", got)
	}
	held := f.awaitHeld(t)
	if s := held.Status; s.StableRevision == "" || s.StableRevision == s.LatestRevision {
		t.Errorf("the stable revision is %q, and the latest one is %q", s.StableRevision, s.LatestRevision)
	}
	ready := meta.FindStatusCondition(held.Status.Conditions, appsv1beta1.ConditionReady)
	for _, want := range []string{held.Status.StableRevision, held.Status.LatestRevision} {
		if !strings.Contains(ready.Message, want) {
			t.Errorf("the condition Ready says %q, without %q", ready.Message, want)
		}
	}
	if row := testkit.Kubectl(t, cluster, "", "get", "sidecarset", held.Name); !strings.Contains(row, appsv1beta1.ReasonRevisionNotStable) {
		t.Errorf("kubectl get prints\n%s", row)
	}
	f.tried(t, badImage)
	if got := f.createPods(t, "later", 15); got[firstImage] != 15 {
		t.Errorf("while a running Pod tries the image, new Pods got %v", got)
	}
	f.awaitHeld(t)
	if got := f.images(t, "side"); got[badImage] == 0 || got[badImage] > 2 {
		t.Errorf("the images are %v, want one or two bad ones", got)
	}

	f.setImage(t, goodImage)
	f.await(t, "the good image to be stable", testkit.Ready)
	runs := 0
	for _, p := range f.pods(t) {
		if statusOfContainer(t, &p, "side").Image == goodImage {
			runs++
		}
	}
	if runs < 3 {
		t.Errorf("the good image is stable, and %d Pods run it", runs)
	}
	if got := f.createPods(t, "good", 5); got[goodImage] != 5 {
		t.Errorf("while Ready is True, new Pods got %v", got)
	}
}

// An image that breaks its Pods after 20 or 50 s, with a min-ready-seconds of 30, and all of them divided by ten:
// no new Pod gets it, and no more running Pods do than in the simulation.
func TestNewPodsDoNotGetAnImageThatBreaksLater(t *testing.T) {
	t.Parallel()
	for image, most := range map[string]int{breaksAfter20: 2, breaksAfter50: 3} {
		t.Run(image, func(t *testing.T) {
			t.Parallel()
			f := newStableFleet(t, 6)
			f.setMinReadySeconds(t, "3")
			f.await(t, "the edit of min-ready-seconds", testkit.Ready)
			f.setImage(t, image)
			f.tried(t, image)
			for i := range 20 { // for ten seconds
				if got := f.createPods(t, fmt.Sprintf("born-%02d", i), 2); got[firstImage] != 2 {
					t.Fatalf("new Pods got %v", got)
				}
				<-time.After(500 * time.Millisecond)
			}
			f.await(t, "a held revision", func(set *appsv1beta1.SidecarSet) error {
				if c := meta.FindStatusCondition(set.Status.Conditions, appsv1beta1.ConditionReady); c == nil || c.Reason != appsv1beta1.ReasonRevisionNotStable {
					return fmt.Errorf("the condition Ready is %+v", c)
				}
				return nil
			})
			if got := f.images(t, "side"); got[image] == 0 || got[image] > most {
				t.Errorf("the images are %v, want 1 to %d that break", got, most)
			}
		})
	}
}
