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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

const (
	// atOnce is what "within seconds" means on a busy machine.
	atOnce = time.Minute
	// held is how long a rollout with a bad image is watched: a Pod that breaks a minute after its
	// update, and two proofs of half a minute.
	held = 150 * time.Second
)

// TestRolloutSafety has rollouts that could hurt, on a control plane with controllers and
// fake nodes.
func TestRolloutSafety(t *testing.T) {
	operator.NeedReplicas(t)
	t.Parallel()
	r := newPlane(t, 51, stand.Options{Audit: true}, deploy.Default)
	tests := map[string]func(*testing.T){
		"Deleted/missing":       func(t *testing.T) { r.testDeleted(t, "example.com/side:missing") },
		"Deleted/breaks":        func(t *testing.T) { r.testDeleted(t, "example.com/side:breaks-app-1s") },
		"OneAppCannotStart":     r.testOneAppCannotStart,
		"Churn":                 r.testChurn,
		"IgnoringNode":          r.testIgnoringNode,
		"SilentNode":            r.testSilentNode,
		"Cure":                  r.testCure,
		"NotRunning":            r.testNotRunning,
		"Emergency/edits":       func(t *testing.T) { r.testEdits(t, "example.com/side:v2", "example.com/side:v3") },
		"Emergency/repair":      func(t *testing.T) { r.testEdits(t, "example.com/side:missing", "example.com/side:v2") },
		"Emergency/rollback":    func(t *testing.T) { r.testEdits(t, "example.com/side:v2", "example.com/side:v1") },
		"Emergency/partition":   func(t *testing.T) { r.testCanary(t, `partition: "90%"`) },
		"Emergency/selector":    func(t *testing.T) { r.testCanary(t, `selector: {matchLabels: {canary: "yes"}}`) },
		"Emergency/nothingElse": r.testRepairWithoutBudget,
		"EqualDigest":           r.testEqualDigest,
		"BreaksAfterwards":      r.testBreaksAfterwards,
		"PausedWhileBroken":     r.testPausedWhileBroken,
		"Refused":               r.testRefused,
		"Undone/whole":          func(t *testing.T) { r.testUndone(t, undoneWhole) },
		"Undone/annotation":     func(t *testing.T) { r.testUndone(t, undoneAnnotation) },
		"Share":                 r.testShare,
	}
	for _, tc := range []struct{ image, budget string }{
		{"breaks-app-10s", "1"},
		{"breaks-app-10s", `"50%"`},
		{"breaks-10s", `"100%"`},
		{"crashes-10s", "1"},
		{"crashes-10s", `"100%"`},
		{"breaks-50s", "1"},
		{"breaks-app-50s", `"50%"`},
	} {
		tests["Break/"+tc.image+"/"+strings.Trim(tc.budget, `"%`)] = func(t *testing.T) { r.testBreak(t, tc.image, tc.budget, false) }
	}
	tests["Break/gate/100"] = func(t *testing.T) { r.testBreak(t, "gate", `"100%"`, true) }
	together(t, tests)
	t.Run("BrokenBeforeTheLeader", r.testBrokenBeforeTheLeader)
	t.Run("Leaders", r.testLeaders)
}

// roll creates a SidecarSet with one container, side, and this strategy.
func (r *plane) roll(t *testing.T, namespace, strategy string, annotations map[string]string) *app {
	t.Helper()
	return r.apply(t, namespace, fmt.Sprintf(`
selector: {matchLabels: {app: web}}
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
updateStrategy: {type: RollingUpdate, %s}
containers: [{name: side, image: "example.com/side:v1"}]
`, strategy), annotations)
}

// atOnceProven are the annotations of a SidecarSet whose Pods are proven as soon as they are
// Ready.
func atOnceProven() map[string]string {
	return map[string]string{appsv1beta1.AnnotationMinReadySeconds: "0"}
}

func (a *app) setImage(t *testing.T, image string) {
	t.Helper()
	a.merge(t, map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "side", "image": image}}}})
}

func (a *app) setStrategy(t *testing.T, strategy map[string]any) {
	t.Helper()
	a.merge(t, map[string]any{"spec": map[string]any{"updateStrategy": strategy}})
}

// with returns the Pods whose sidecar is to have an image.
func (a *app) with(t *testing.T, image string) (names []string) {
	t.Helper()
	for _, p := range a.list(t, a.namespace) {
		if testkit.WantedImage(&p, "side") == image {
			names = append(names, p.Name)
		}
	}
	return names
}

// watchHeld watches a rollout that a bad image holds up, and checks that the status then names a Pod
// of the namespace and the rule by which others wait. meanwhile runs before each look.
func (a *app) watchHeld(t *testing.T, long time.Duration, meanwhile func()) (message string) {
	t.Helper()
	for end := time.Now().Add(long); time.Now().Before(end); <-time.After(time.Second) {
		meanwhile()
	}
	a.await(t, "a rollout that waits for a Pod", func(s appsv1beta1.SidecarSetStatus) error {
		c := meta.FindStatusCondition(s.Conditions, appsv1beta1.ConditionProgressing)
		if c == nil || c.Reason != appsv1beta1.ReasonRollingOut || !strings.Contains(c.Message, "The rollout waits for "+a.namespace+"/web-") {
			return fmt.Errorf("%+v", s.Conditions)
		}
		message = c.Message
		return nil
	})
	return message
}

// A sidecar starts, and its Pod breaks some time later, within a minute. The rollout stops after
// two Pods at most, whatever the budget. (A node of a busy machine reports a break some seconds
// late; package rollout simulates breaks after 59 s.)
func (r *plane) testBreak(t *testing.T, tag, budget string, gate bool) {
	const pods, most = 6, 2
	image := "example.com/side:" + tag
	namespace := r.namespace(t)
	a := r.roll(t, namespace, "maxUnavailable: "+budget, map[string]string{})
	d := r.deployment(namespace, pods)
	d.Spec.Template.Spec.TerminationGracePeriodSeconds = new(int64(1))
	if gate {
		d.Spec.Template.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: gateType}}
		r.closeGates(t, namespace, image, 10*time.Second)
	}
	r.launch(t, d)
	r.awaitDeployed(t, d, pods)
	a.awaitComplete(t, rolloutPatience, pods)
	a.setImage(t, image)
	began := time.Now()
	message := a.watchHeld(t, held, func() {
		if got := a.with(t, image); len(got) > most {
			t.Fatalf("%d of %d Pods have the bad image after %s, want %d at most", len(got), pods, time.Since(began).Round(time.Second), most)
		}
	})
	t.Logf("%d Pods: %s", len(a.with(t, image)), message)
}

// gateType is a readiness gate.
const gateType = "stand.test/gate"

// setGate opens or closes the readiness gate of a Pod.
func (r *plane) setGate(t *testing.T, p *corev1.Pod, status corev1.ConditionStatus) {
	t.Helper()
	body := fmt.Sprintf(`{"metadata":{"uid":%q},"status":{"conditions":[{"type":%q,"status":%q}]}}`, p.UID, gateType, status)
	err := r.api.Status().Patch(t.Context(), p.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, []byte(body)))
	if client.IgnoreNotFound(err) != nil && t.Context().Err() == nil {
		t.Error(err)
	}
}

// closeGates opens the gates of a namespace's Pods until the test ends. It closes that of a
// Pod whose sidecar has run with the image for a while.
func (r *plane) closeGates(t *testing.T, namespace, image string, after time.Duration) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for t.Context().Err() == nil {
			list := &corev1.PodList{}
			_ = r.api.List(t.Context(), list, client.InNamespace(namespace))
			for i := range list.Items {
				p := &list.Items[i]
				want := corev1.ConditionTrue
				for _, s := range p.Status.ContainerStatuses {
					if s.Image == image && s.State.Running != nil && time.Since(s.State.Running.StartedAt.Time) >= after {
						want = corev1.ConditionFalse
					}
				}
				if p.Status.StartTime != nil && conditionOf(p, gateType) != want {
					r.setGate(t, p, want)
				}
			}
			select {
			case <-t.Context().Done():
			case <-time.After(300 * time.Millisecond):
			}
		}
	}()
	t.Cleanup(func() { <-done })
}

func conditionOf(p *corev1.Pod, kind corev1.PodConditionType) corev1.ConditionStatus {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c.Status
		}
	}
	return ""
}

// A user deletes each Pod that the image has broken. Each keeps its place, so that no other Pod
// gets the image in place.
func (r *plane) testDeleted(t *testing.T, image string) {
	const pods = 6
	namespace := r.namespace(t)
	a := r.roll(t, namespace, "maxUnavailable: 1", map[string]string{})
	r.deploy(t, namespace, pods, quickToStop)
	a.awaitComplete(t, rolloutPatience, pods)
	first := map[types.UID]bool{}
	for _, p := range r.list(t, namespace) {
		first[p.UID] = true
	}
	a.setImage(t, image)
	fed, deleted := map[types.UID]bool{}, map[types.UID]bool{}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); <-time.After(time.Second) {
		for _, p := range r.list(t, namespace) {
			if testkit.WantedImage(&p, "side") != image || !first[p.UID] {
				continue
			}
			fed[p.UID] = true
			if !isReady(&p) && p.DeletionTimestamp == nil {
				deleted[p.UID] = true
				if err := r.api.Delete(t.Context(), &p); client.IgnoreNotFound(err) != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if len(fed) != 1 || len(deleted) != 1 {
		t.Errorf("%d Pods got the bad image in place, and %d of them were deleted, want one", len(fed), len(deleted))
	}
	a.await(t, "the place of the deleted Pod", func(s appsv1beta1.SidecarSetStatus) error {
		c := meta.FindStatusCondition(s.Conditions, appsv1beta1.ConditionProgressing)
		if s.DisappearedPods != 1 || s.DisappearedUntil == nil || !strings.Contains(c.Message, "places of Pods that disappeared are kept until") {
			return fmt.Errorf("%d disappeared until %v; %s", s.DisappearedPods, s.DisappearedUntil, c.Message)
		}
		return nil
	})
}

// All Pods are down, because their image cannot be pulled. A good image reaches all of them soon.
func (r *plane) testCure(t *testing.T) {
	const pods = 12
	namespace := r.namespace(t)
	a := r.roll(t, namespace, "maxUnavailable: 1", map[string]string{})
	a.setImage(t, "example.com/side:missing")
	testkit.AwaitReady(t, a.api, a.set.GetName())
	d := r.deployment(namespace, pods)
	r.launch(t, d)
	a.await(t, "Pods that are down", func(s appsv1beta1.SidecarSetStatus) error {
		if s.UpdatedPods != pods || s.ReadyPods != 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	a.setImage(t, "example.com/side:v2")
	began := time.Now()
	a.awaitComplete(t, rolloutPatience, pods)
	t.Logf("cured after %s", time.Since(began).Round(time.Second))
}

// The sidecar of new Pods cannot be pulled. The status names them after a minute, with the
// kubelet's reason.
func (r *plane) testNotRunning(t *testing.T) {
	const pods = 4
	namespace := r.namespace(t)
	a := r.roll(t, namespace, "maxUnavailable: 1", map[string]string{})
	a.setImage(t, "example.com/side:missing")
	testkit.AwaitReady(t, a.api, a.set.GetName())
	r.launch(t, r.deployment(namespace, pods))
	message := a.awaitDegraded(t, appsv1beta1.ReasonSidecarsNotRunning)
	if !strings.Contains(message, "ImagePullBackOff") || !strings.Contains(message, "container side") || !strings.Contains(message, namespace+"/web-") {
		t.Errorf("Degraded says %q, want the kubelet's reason, the container and a Pod", message)
	}
	a.await(t, "the Pods whose sidecars do not run", func(s appsv1beta1.SidecarSetStatus) error {
		if len(s.NotRunningPods) != 1 || s.NotRunningPods[0].Pods != pods || s.NotRunningPods[0].Message != "side" {
			return fmt.Errorf("%+v", s.NotRunningPods)
		}
		return nil
	})
	a.setImage(t, "example.com/side:v1")
	a.awaitComplete(t, rolloutPatience, pods)
}

func quickToStop(s *corev1.PodSpec) { s.TerminationGracePeriodSeconds = new(int64(1)) }

// One app cannot start, and another rolls itself out to an image that cannot be pulled. The
// others are updated.
func (r *plane) testOneAppCannotStart(t *testing.T) {
	namespace := r.namespace(t)
	a := r.roll(t, namespace, "maxUnavailable: 1", atOnceProven())
	healthy := r.deployment(namespace, 6)
	r.launch(t, healthy)
	broken := r.deployment(namespace, 2)
	broken.Spec.Template.Spec.Containers[0].Image = "example.com/app:missing"
	r.launch(t, broken)
	rolling := r.deployment(namespace, 2)
	r.launch(t, rolling)
	r.awaitDeployed(t, healthy, 6)
	r.awaitDeployed(t, rolling, 2)
	a.await(t, "all Pods", func(s appsv1beta1.SidecarSetStatus) error {
		if s.MatchedPods != 10 || s.ReadyPods != 8 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	a.setImage(t, "example.com/side:v2")
	r.changeDeployment(t, rolling, `{"template":{"spec":{"containers":[{"name":"app","image":"example.com/app:missing-2"}]}}}`)
	await.Within(t, rolloutPatience, "the new image in the healthy Pods", func(context.Context) error {
		for _, p := range r.list(t, namespace) {
			if p.Labels["deployment"] == healthy.Spec.Selector.MatchLabels["deployment"] && (testkit.WantedImage(&p, "side") != "example.com/side:v2" || !isReady(&p)) {
				return fmt.Errorf("Pod %s has %s, and its Ready is %v", p.Name, testkit.WantedImage(&p, "side"), isReady(&p))
			}
		}
		return nil
	})
}

// Pods of another app come and go all the time. The status goes on naming the Pod that waits.
func (r *plane) testChurn(t *testing.T) {
	namespace := r.namespace(t)
	a := r.roll(t, namespace, "maxUnavailable: 1, priorityStrategy: {orderPriority: [{orderedKey: last}]}", atOnceProven())
	r.deploy(t, namespace, 4, quickToStop) // Pods without the key are updated first
	churning := r.deployment(namespace, 1)
	churning.Spec.Template.Labels["last"] = "yes"
	churning.Spec.Template.Spec.TerminationGracePeriodSeconds = new(int64(1))
	r.launch(t, churning)
	r.awaitDeployed(t, churning, 1)
	a.awaitComplete(t, rolloutPatience, 5)
	const image = "example.com/side:missing"
	a.setImage(t, image)
	replicas, last := 1, time.Now()
	message := a.watchHeld(t, time.Minute, func() {
		if time.Since(last) < 10*time.Second {
			return
		}
		last, replicas = time.Now(), 1-replicas
		r.changeDeployment(t, churning, fmt.Sprintf(`{"replicas":%d}`, replicas))
	})
	if !strings.Contains(message, "ImagePullBackOff") {
		t.Errorf("Progressing says %q, want the kubelet's reason", message)
	}
}

// A node does not act on updates, and reports nothing. When the rollout is paused, the message
// names the Pod that it has begun with. Otherwise it would take ten minutes.
func (r *plane) testIgnoringNode(t *testing.T) {
	namespace := r.namespace(t)
	a := r.roll(t, namespace, "maxUnavailable: 1", atOnceProven())
	d := r.deployment(namespace, 3)
	d.Spec.Template.Annotations["stand.test/updates"] = "ignored"
	d.Spec.Template.Spec.TerminationGracePeriodSeconds = new(int64(1))
	r.launch(t, d)
	r.awaitDeployed(t, d, 3)
	a.awaitComplete(t, rolloutPatience, 3)
	a.setImage(t, "example.com/side:v2")
	await.Within(t, rolloutPatience, "a Pod with the new image", func(context.Context) error {
		if len(a.with(t, "example.com/side:v2")) == 0 {
			return errors.New("there is none")
		}
		return nil
	})
	a.setStrategy(t, map[string]any{"paused": true})
	message := a.awaitDegraded(t, "PodsNotReady")
	names := a.with(t, "example.com/side:v2")
	if len(names) != 1 || !strings.Contains(message, names[0]) {
		t.Errorf("the Pods with the new image are %v, and Degraded says %q", names, message)
	}
}

// After the end of a rollout, an updated Pod turns not ready. The SidecarSet is degraded until
// the Pod is ready again.
func (r *plane) testBreaksAfterwards(t *testing.T) {
	namespace := r.namespace(t)
	a := r.roll(t, namespace, `maxUnavailable: "100%"`, atOnceProven())
	d := r.gated(t, namespace, 3)
	a.awaitComplete(t, rolloutPatience, 3)
	a.setImage(t, "example.com/side:v2")
	a.awaitComplete(t, rolloutPatience, 3)
	broken := r.list(t, d.Namespace)[0]
	r.setGate(t, &broken, corev1.ConditionFalse)
	message := a.awaitDegraded(t, "PodsNotReady")
	if !strings.Contains(message, broken.Name) {
		t.Errorf("Degraded says %q, want the name of Pod %s", message, broken.Name)
	}
	r.setGate(t, &broken, corev1.ConditionTrue)
	a.awaitComplete(t, rolloutPatience, 3)
}

// gated creates a Deployment whose Pods have a readiness gate, which is open.
func (r *plane) gated(t *testing.T, namespace string, replicas int32) *appsv1.Deployment {
	t.Helper()
	d := r.deployment(namespace, replicas)
	d.Spec.Template.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: gateType}}
	r.launch(t, d)
	await.Within(t, rolloutPatience, "the Pods", func(context.Context) error {
		pods := r.list(t, namespace)
		for i := range pods {
			if pods[i].Status.StartTime == nil {
				return errors.New(pods[i].Name + " has not started")
			}
		}
		if len(pods) != int(replicas) {
			return fmt.Errorf("there are %d Pods", len(pods))
		}
		for i := range pods {
			r.setGate(t, &pods[i], corev1.ConditionTrue)
		}
		return nil
	})
	r.awaitDeployed(t, d, replicas)
	return d
}

// awaitDegraded waits until Degraded is True for this reason, and returns its message.
func (a *app) awaitDegraded(t *testing.T, reason string) (message string) {
	t.Helper()
	a.await(t, "Degraded for "+reason, func(s appsv1beta1.SidecarSetStatus) error {
		c := meta.FindStatusCondition(s.Conditions, appsv1beta1.ConditionDegraded)
		if c == nil || c.Status != metav1.ConditionTrue || c.Reason != reason {
			return fmt.Errorf("%+v", s.Conditions)
		}
		message = c.Message
		return nil
	})
	return message
}

// A rollout is paused while a Pod waits for its image. The SidecarSet is degraded.
func (r *plane) testPausedWhileBroken(t *testing.T) {
	namespace := r.namespace(t)
	a := r.roll(t, namespace, "maxUnavailable: 1", atOnceProven())
	r.deploy(t, namespace, 3, quickToStop)
	a.awaitComplete(t, rolloutPatience, 3)
	a.setImage(t, "example.com/side:missing")
	a.await(t, "a Pod that is not ready", func(s appsv1beta1.SidecarSetStatus) error {
		if s.ReadyPods != 2 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	a.setStrategy(t, map[string]any{"paused": true})
	if message := a.awaitDegraded(t, "PodsNotReady"); !strings.Contains(message, namespace+"/web-") {
		t.Errorf("Degraded says %q, want the name of a Pod", message)
	}
}
