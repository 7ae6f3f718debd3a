package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// The node of one of five Pods does not act on updates. The status names the Pod, and after ten minutes
// the others are updated.
func (r *plane) testSilentNode(t *testing.T) {
	if !testkit.Scaled(false, true) {
		t.Skip("SKIP: it takes twelve minutes; CHAOS=long runs it, and package rollout simulates it")
	}
	namespace := r.namespace(t)
	a := r.roll(t, namespace, "maxUnavailable: 1, priorityStrategy: {orderPriority: [{orderedKey: first}]}", map[string]string{})
	silent := r.deployment(namespace, 1)
	silent.Spec.Template.Annotations["stand.test/updates"] = "ignored"
	silent.Spec.Template.Spec.TerminationGracePeriodSeconds = new(int64(1))
	r.launch(t, silent)
	r.awaitDeployed(t, silent, 1)
	others := r.deployment(namespace, 4)
	others.Spec.Template.Labels["first"] = "no-1" // Pods without the key come first
	r.launch(t, others)
	r.awaitDeployed(t, others, 4)
	a.awaitComplete(t, rolloutPatience, 5)
	a.setImage(t, "example.com/side:v2")
	began := time.Now()
	var name string
	await.Within(t, rolloutPatience, "the silent Pod", func(context.Context) error {
		for _, p := range r.list(t, namespace) {
			if p.Annotations["stand.test/updates"] == "ignored" && testkit.WantedImage(&p, "side") == "example.com/side:v2" {
				name = p.Name
				return nil
			}
		}
		return errors.New("it has not been written")
	})
	if message := a.watchHeld(t, time.Minute, func() {}); !strings.Contains(message, name) || !strings.Contains(message, appsv1beta1.ReasonNotAcknowledged) {
		t.Errorf("Progressing says %q, want Pod %s, which its node has not acknowledged", message, name)
	}
	await.Within(t, 14*time.Minute, "the other Pods", func(ctx context.Context) error {
		set, err := testkit.Get(ctx, r.api, a.set.GetName())
		if err != nil {
			return err
		}
		blocked := set.Status.BlockedPods
		if got := a.with(t, "example.com/side:v2"); len(got) != 5 || len(blocked) != 1 || blocked[0].Reason != "NotCarriedOut" || !strings.Contains(blocked[0].First[0], name) {
			return fmt.Errorf("%d Pods have the image, blocked are %+v", len(got), blocked)
		}
		return nil
	})
	t.Logf("done after %s", time.Since(began).Round(time.Second))
}

// The leader changes each half minute. A rollout ends all the same, one Pod at a time.
func (r *plane) testLeaders(t *testing.T) {
	if !testkit.Scaled(false, true) {
		t.Skip("SKIP: it takes some minutes; CHAOS=long runs it, and package rollout simulates it")
	}
	const pods = 12
	namespace := r.namespace(t)
	a := r.roll(t, namespace, "maxUnavailable: 1", atOnceProven())
	d := r.deployment(namespace, pods)
	d.Spec.Template.Annotations["stand.test/pull-delay"] = "5s"
	r.launch(t, d)
	r.awaitDeployed(t, d, pods)
	a.awaitComplete(t, rolloutPatience, pods)
	down := r.watchDown(t, namespace)
	a.setImage(t, "example.com/side:v2")
	for changes := 1; ; changes++ {
		<-time.After(30 * time.Second)
		set, err := testkit.Get(t.Context(), r.api, a.set.GetName())
		if err == nil && isComplete(set, pods) == nil {
			t.Logf("complete after %d changes of the leader", changes-1)
			break
		}
		if changes > 20 {
			t.Fatalf("not complete after %d changes of the leader: %v", changes, err)
		}
		r.changeLeader(t)
	}
	down.mu.Lock()
	defer down.mu.Unlock()
	if down.mostOfAll > 1 {
		t.Errorf("%d Pods were down at the same time, want one", down.mostOfAll)
	}
}

// A Pod is broken, and another leader comes. A rollout reaches the other Pods.
func (r *plane) testBrokenBeforeTheLeader(t *testing.T) {
	namespace := r.namespace(t)
	a := r.roll(t, namespace, "maxUnavailable: 1", atOnceProven())
	r.gated(t, namespace, 5)
	a.awaitComplete(t, rolloutPatience, 5)
	broken := r.list(t, namespace)[0]
	r.setGate(t, &broken, corev1.ConditionFalse)
	a.await(t, "the broken Pod", func(s appsv1beta1.SidecarSetStatus) error {
		if s.ReadyPods != 4 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	r.changeLeader(t)
	a.setImage(t, "example.com/side:v2")
	a.await(t, "the new image in the other Pods", func(s appsv1beta1.SidecarSetStatus) error {
		if s.UpdatedReadyPods != 4 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}
