package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// awaitComplete waits until the status says that all of a number of Pods are updated and
// ready, that the rollout is complete, and that nothing is wrong.
func (a *app) awaitComplete(t *testing.T, within time.Duration, pods int) {
	t.Helper()
	await.Within(t, within, "the end of the rollout of "+a.set.GetName(), func(ctx context.Context) error {
		set, err := testkit.Get(ctx, a.api, a.set.GetName())
		if err == nil {
			err = testkit.Observed(set)
		}
		if err != nil {
			return err
		}
		return isComplete(set, pods)
	})
}

func isComplete(set *appsv1beta1.SidecarSet, pods int) error {
	n := int32(pods)
	want := testkit.Counters{Matched: n, Updated: n, Ready: n, UpdatedReady: n}
	progressing := meta.FindStatusCondition(set.Status.Conditions, appsv1beta1.ConditionProgressing)
	degraded := meta.FindStatusCondition(set.Status.Conditions, appsv1beta1.ConditionDegraded)
	if got := testkit.CountersOf(set); got != want || progressing == nil || progressing.Reason != "Complete" || degraded == nil || degraded.Status != "False" {
		return fmt.Errorf("%+v, want %+v; Progressing is %+v, Degraded is %+v", got, want, progressing, degraded)
	}
	return nil
}

// startsSlowly makes a Deployment's Pods take as long as this to start.
func startsSlowly(d *appsv1.Deployment, by string) {
	d.Spec.Template.Annotations["stand.test/start-delay"] = by
}

// An app is scaled to zero while its evicted Pods are replaced. Nothing of that is left when
// it is scaled up again.
func (r *plane) testScaledToZero(t *testing.T) {
	namespace := r.namespace(t)
	a := r.inject(t, namespace, "Outdated", strings.Replace(recreated, "maxUnavailable: 2", "maxUnavailable: 3", 1))
	d := r.deployment(namespace, 3)
	startsSlowly(d, "10s")
	r.launch(t, d)
	r.awaitDeployed(t, d, 3)
	a.awaitRecreated(t, 3)
	before := map[string]bool{}
	for _, p := range r.list(t, namespace) {
		before[p.Name] = true
	}
	a.change(t, "2")
	await.Within(t, rolloutPatience, "a replacement that is not ready", func(context.Context) error {
		for _, p := range r.list(t, namespace) {
			if !before[p.Name] && p.DeletionTimestamp == nil && !isReady(&p) {
				return nil
			}
		}
		return errors.New("there is none")
	})
	r.changeDeployment(t, d, `{"replicas":0}`)
	a.await(t, "no Pods", func(s appsv1beta1.SidecarSetStatus) error {
		if s.MatchedPods != 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	// The old rules counted the missing Pods as failures at this time.
	<-time.After(35 * time.Second)
	r.changeDeployment(t, d, `{"replicas":3}`)
	a.awaitComplete(t, rolloutPatience, 3)
}

func isReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// An app rolls itself out in the second in which its Pods have to be replaced.
func (r *plane) testRollsItselfOut(t *testing.T) {
	namespace := r.namespace(t)
	a := r.inject(t, namespace, "Outdated", strings.Replace(recreated, "maxUnavailable: 2", "maxUnavailable: 1", 1))
	d := r.deployment(namespace, 6)
	startsSlowly(d, "5s")
	r.launch(t, d)
	r.awaitDeployed(t, d, 6)
	a.awaitRecreated(t, 6)
	a.change(t, "2")
	r.changeDeployment(t, d, `{"template":{"spec":{"containers":[{"name":"app","image":"example.com/app:v2"}]}}}`)
	a.awaitComplete(t, recreationPatience, 6)
	for _, p := range r.list(t, namespace) {
		if p.DeletionTimestamp == nil && testkit.WantedImage(&p, "app") != "example.com/app:v2" {
			t.Errorf("Pod %s has the app's old image", p.Name)
		}
	}
}

// An app is scaled up and down while its Pods are replaced.
func (r *plane) testScaled(t *testing.T) {
	namespace := r.namespace(t)
	a := r.inject(t, namespace, "Outdated", recreated)
	d := r.deployment(namespace, 4)
	startsSlowly(d, "3s")
	r.launch(t, d)
	r.awaitDeployed(t, d, 4)
	a.awaitRecreated(t, 4)
	a.change(t, "2")
	for _, replicas := range []int{6, 2, 5, 1, 4} {
		r.changeDeployment(t, d, fmt.Sprintf(`{"replicas":%d}`, replicas))
		<-time.After(4 * time.Second)
	}
	a.awaitComplete(t, recreationPatience, 4)
}

// A Pod of another app is never ready. After a change of leaders, a new image reaches the
// Pods that are ready.
func (r *plane) testLeaderAndABrokenApp(t *testing.T) {
	namespace := r.namespace(t)
	a := r.inject(t, namespace, "Outdated", strings.Replace(recreated, "maxUnavailable: 2", "maxUnavailable: 1", 1))
	r.deploy(t, namespace, 4)
	broken := r.deployment(namespace, 1)
	broken.Spec.Template.Spec.Containers[0].Image = "example.com/app:crash"
	r.launch(t, broken)
	a.await(t, "all Pods", func(s appsv1beta1.SidecarSetStatus) error {
		if s.MatchedPods != 5 || s.ReadyPods != 4 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	r.changeLeader(t)
	a.merge(t, map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "side", "image": "example.com/side:v2"}}}})
	a.await(t, "the new image in the ready Pods", func(s appsv1beta1.SidecarSetStatus) error {
		if s.UpdatedReadyPods != 4 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}
