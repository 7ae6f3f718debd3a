package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// slowToStop gives Pods a grace period that a rollout must not wait for.
func slowToStop(s *corev1.PodSpec) { s.TerminationGracePeriodSeconds = new(int64(600)) }

// In the middle of a rollout, or when its image cannot be pulled, the image changes. The
// rollout goes on at once. Where the kubelet stops a container for the first image and starts the
// one before again, its digest is what it was: that takes 40 s more at most.
func (r *plane) testEdits(t *testing.T, first, second string) {
	const pods = 4
	namespace := r.namespace(t)
	a := r.roll(t, namespace, "maxUnavailable: 2", atOnceProven())
	r.deploy(t, namespace, pods, slowToStop)
	a.awaitComplete(t, rolloutPatience, pods)
	a.setImage(t, first)
	await.Within(t, rolloutPatience, "a Pod that runs, or waits for, "+first, func(context.Context) error {
		for _, p := range r.list(t, namespace) {
			s := statusOfContainer(t, &p, "side")
			if testkit.WantedImage(&p, "side") == first && (s.Image == first || s.State.Waiting != nil) {
				return nil
			}
		}
		return errors.New("there is none")
	})
	a.setImage(t, second)
	began := time.Now()
	within := atOnce
	if second == "example.com/side:v1" {
		within += 40 * time.Second
	}
	a.awaitComplete(t, within, pods)
	t.Logf("complete %s after the second change", time.Since(began).Round(100*time.Millisecond))
	if got := a.with(t, second); len(got) != pods {
		t.Errorf("%v have %s, want all %d", got, second, pods)
	}
}

// A canary gets a bad image, and the SidecarSet gets the old one again. The canary is repaired
// at once, although the strategy would leave it alone.
func (r *plane) testCanary(t *testing.T, strategy string) {
	const pods = 10
	namespace := r.namespace(t)
	a := r.roll(t, namespace, "maxUnavailable: 1, "+strategy, map[string]string{})
	r.deploy(t, namespace, pods, slowToStop)
	canary := r.list(t, namespace)[0]
	if err := r.api.Patch(t.Context(), &canary, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"canary":"yes"}}}`))); err != nil {
		t.Fatal(err)
	}
	a.await(t, "all Pods", func(s appsv1beta1.SidecarSetStatus) error {
		if s.UpdatedReadyPods != pods {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	a.setImage(t, "example.com/side:missing")
	await.Within(t, rolloutPatience, "the canary", func(context.Context) error {
		names := a.with(t, "example.com/side:missing")
		ready := 0
		for _, p := range r.list(t, namespace) {
			if isReady(&p) {
				ready++
			}
		}
		if len(names) != 1 || ready != pods-1 {
			return fmt.Errorf("%v have the image, and %d Pods are ready", names, ready)
		}
		return nil
	})
	a.setImage(t, "example.com/side:v1")
	began := time.Now()
	await.Within(t, atOnce, "the repair of the canary", func(context.Context) error {
		for _, p := range r.list(t, namespace) {
			if image := testkit.WantedImage(&p, "side"); image != "example.com/side:v1" || !isReady(&p) {
				return fmt.Errorf("Pod %s has %s, and its Ready is %v", p.Name, image, isReady(&p))
			}
		}
		return nil
	})
	t.Logf("repaired %s after the rollback", time.Since(began).Round(100*time.Millisecond))
}

// The author of a bad image corrects it, and allows no further Pod to be unavailable. The Pod
// that is broken is repaired.
func (r *plane) testRepairWithoutBudget(t *testing.T) {
	namespace := r.namespace(t)
	a := r.roll(t, namespace, "maxUnavailable: 1", atOnceProven())
	r.deploy(t, namespace, 4, slowToStop)
	a.awaitComplete(t, rolloutPatience, 4)
	a.setImage(t, "example.com/side:missing")
	var broken []string
	await.Within(t, rolloutPatience, "the broken Pod", func(context.Context) error {
		if broken = a.with(t, "example.com/side:missing"); len(broken) != 1 {
			return fmt.Errorf("%v have the bad image", broken)
		}
		return nil
	})
	a.merge(t, map[string]any{"spec": map[string]any{
		"updateStrategy": map[string]any{"maxUnavailable": 0},
		"containers":     []any{map[string]any{"name": "side", "image": "example.com/side:v2"}},
	}})
	await.Within(t, atOnce, "the repair", func(context.Context) error {
		p := &corev1.Pod{}
		if err := r.api.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: broken[0]}, p); err != nil {
			return err
		}
		if image := testkit.WantedImage(p, "side"); image != "example.com/side:v2" || !isReady(p) {
			return fmt.Errorf("it has %s, and its Ready is %v", image, isReady(p))
		}
		return nil
	})
	if got := a.with(t, "example.com/side:v1"); len(got) != 3 {
		t.Errorf("%v have the old image, want three Pods", got)
	}
}

// The new tag has the digest of the old one. A Pod waits for 40 s at most, whatever its grace
// period.
func (r *plane) testEqualDigest(t *testing.T) {
	const pods = 2
	namespace := r.namespace(t)
	a := r.roll(t, namespace, "maxUnavailable: 1", atOnceProven())
	r.deploy(t, namespace, pods, func(s *corev1.PodSpec) { s.TerminationGracePeriodSeconds = new(int64(3600)) })
	a.awaitComplete(t, rolloutPatience, pods)
	a.setImage(t, "example.com/side:same-1")
	a.awaitComplete(t, rolloutPatience, pods)
	a.setImage(t, "example.com/side:same-2")
	began := time.Now()
	a.awaitComplete(t, pods*40*time.Second+atOnce, pods)
	t.Logf("complete after %s", time.Since(began).Round(time.Second))
}
