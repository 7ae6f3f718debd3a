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
// fake nodes. Package rollout simulates many more.
func TestRolloutSafety(t *testing.T) {
	operator.NeedReplicas(t)
	t.Parallel()
	r := newPlane(t, 51, stand.Options{Audit: true}, deploy.Default)
	together(t, map[string]func(*testing.T){
		"Breaks":            r.testBreaks,
		"Deleted":           r.testDeleted,
		"OneAppCannotStart": r.testOneAppCannotStart,
		"NotRunning":        r.testNotRunning,
		"Rollback":          r.testRollback,
		"Canary":            r.testCanary,
		"BreaksAfterwards":  r.testBreaksAfterwards,
		"Refused":           r.testRefused,
		"Undone":            r.testUndone,
		"Share":             r.testShare,
	})
	t.Run("BrokenBeforeTheLeader", r.testBrokenBeforeTheLeader)
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
func (r *plane) testBreaks(t *testing.T) {
	const pods, most, image = 6, 2, "example.com/side:breaks-app-50s"
	namespace := r.namespace(t)
	a := r.roll(t, namespace, `maxUnavailable: "100%"`, map[string]string{})
	r.deploy(t, namespace, pods, quickToStop)
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

// A user deletes each Pod that the image has broken. Each uses the budget, so that no other Pod
// gets the image in place.
func (r *plane) testDeleted(t *testing.T) {
	const pods, image = 6, "example.com/side:missing"
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
	a.await(t, "the deleted Pod", func(s appsv1beta1.SidecarSetStatus) error {
		c := meta.FindStatusCondition(s.Conditions, appsv1beta1.ConditionProgressing)
		if s.DisappearedPods != 1 || s.DisappearedUntil == nil || !strings.Contains(c.Message, "1 Pod that disappeared uses maxUnavailable until") {
			return fmt.Errorf("%d disappeared until %v; %s", s.DisappearedPods, s.DisappearedUntil, c.Message)
		}
		return nil
	})
}

// The sidecar of new Pods cannot be pulled. The status names them after a minute, with the
// kubelet's reason. A good image reaches all of them soon.
func (r *plane) testNotRunning(t *testing.T) {
	const pods = 12
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
	a.setImage(t, "example.com/side:v2")
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

// slowToStop gives Pods a grace period that a rollout must not wait for.
func slowToStop(s *corev1.PodSpec) { s.TerminationGracePeriodSeconds = new(int64(600)) }

// In the middle of a rollout, the author goes back to the image before. The rollout goes on at
// once. The kubelet stops a container for the first image and starts the one before again, so that
// its digest is what it was: that takes 40 s more at most.
func (r *plane) testRollback(t *testing.T) {
	const pods, first, second = 4, "example.com/side:v2", "example.com/side:v1"
	namespace := r.namespace(t)
	a := r.roll(t, namespace, "maxUnavailable: 2", atOnceProven())
	r.deploy(t, namespace, pods, slowToStop)
	a.awaitComplete(t, rolloutPatience, pods)
	a.setImage(t, first)
	await.Within(t, rolloutPatience, "a Pod that runs "+first, func(context.Context) error {
		for _, p := range r.list(t, namespace) {
			if s := statusOfContainer(t, &p, "side"); testkit.WantedImage(&p, "side") == first && s.Image == first {
				return nil
			}
		}
		return errors.New("there is none")
	})
	a.setImage(t, second)
	began := time.Now()
	a.awaitComplete(t, atOnce+40*time.Second, pods)
	t.Logf("complete %s after the second change", time.Since(began).Round(100*time.Millisecond))
	if got := a.with(t, second); len(got) != pods {
		t.Errorf("%v have %s, want all %d", got, second, pods)
	}
}

// A canary gets a bad image, and the SidecarSet gets the old one again. The canary is repaired
// at once, although the strategy would leave it alone.
func (r *plane) testCanary(t *testing.T) {
	const pods = 10
	namespace := r.namespace(t)
	a := r.roll(t, namespace, `maxUnavailable: 1, partition: "90%"`, map[string]string{})
	r.deploy(t, namespace, pods, slowToStop)
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
