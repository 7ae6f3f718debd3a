package restart

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestOnePodIsTriedAndThenTheWorkloadRestarted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "")
		c.deployment("web", 3)
		c.deployment("api", 1) // with a surge
		done, passed, err := c.run(t.Context(), false)
		if err != nil || done != "api web " || passed != "" {
			t.Fatalf("done %q, passed %q, %v", done, passed, err)
		}
		if !slices.Equal(c.restarted, []string{"api", "web"}) || len(c.evicted) != 1 || !strings.HasPrefix(c.evicted[0], "web-") {
			t.Errorf("evicted %v, restarted %v", c.evicted, c.restarted)
		}
		if survey, err := Find(t.Context(), c.client, c.judge, c.pods(), false); err != nil || len(survey.Workloads) > 0 || len(survey.Left) > 0 {
			t.Errorf("again: %+v, %v", survey, err)
		}
	})
}

func notReady(pod *corev1.Pod, reason string) {
	pod.Status.Conditions[0] = corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}}
}

// However a new Pod fails, no other workload is begun; while only one Pod was tried, one Pod is lost. A Pod that shows a reason of
// failure for less than a minute has only begun slowly.
func TestAFailureStops(t *testing.T) {
	t.Parallel()
	tests := []struct {
		become    func(pod *corev1.Pod, age time.Duration)
		restarted []string
		want      string
	}{
		{func(pod *corev1.Pod, age time.Duration) {
			if age > 10*time.Second {
				notReady(pod, "CrashLoopBackOff")
			}
		}, nil, "new Pod new-1 was Ready and is not any more (container app: CrashLoopBackOff)"},
		{func(pod *corev1.Pod, age time.Duration) { // between two looks
			if age > 10*time.Second {
				pod.Status.Conditions[0].LastTransitionTime = metav1.Now()
			}
		}, nil, "new Pod new-1 was Ready and is not any more"},
		{func(pod *corev1.Pod, _ time.Duration) { notReady(pod, "ImagePullBackOff") }, nil, "does not become Ready (container app: ImagePullBackOff)"},
		{func(pod *corev1.Pod, _ time.Duration) { notReady(pod, "ContainerCreating") }, nil, "nothing has moved for 10m30s"},
		{func(pod *corev1.Pod, _ time.Duration) { pod.Annotations = nil }, nil, "does not have the current revision"},
		{func(pod *corev1.Pod, age time.Duration) {
			if pod.Name != "new-1" && age > 20*time.Second {
				notReady(pod, "CrashLoopBackOff")
			}
		}, []string{"web"}, "It was restarted"},
		{func(pod *corev1.Pod, age time.Duration) {
			if age < 50*time.Second {
				notReady(pod, "CrashLoopBackOff")
			}
		}, []string{"web", "web2"}, ""},
	}
	for _, tc := range tests {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, "")
			c.become = tc.become
			c.deployment("web", 3)
			c.deployment("web2", 3)
			done, passed, err := c.run(t.Context(), false)
			if tc.want == "" {
				if err != nil || done != "web web2 " || passed != "" {
					t.Errorf("a slow begin: done %q, passed %q, %v", done, passed, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "Deployment shop/web: ") || !strings.Contains(err.Error(), "new-") ||
				tc.restarted == nil && !strings.Contains(err.Error(), "rollout undo agent") {
				t.Errorf("%v, want %q", err, tc.want)
			}
			if len(c.evicted) != 1 || !slices.Equal(c.restarted, tc.restarted) || done != "" || passed != "" {
				t.Errorf("%s: evicted %v, restarted %v, done %q, passed %q", tc.want, c.evicted, c.restarted, done, passed)
			}
		})
	}
}

// What the next Pod would get is asked before a Pod is lost.
func TestNothingIsLostIfTheNextPodWouldNotGetTheRevision(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "")
		c.deployment("web", 2)
		c.deployment("web2", 2)
		c.deployment("web3", 2)
		c.next = func(workload string) (string, error) {
			switch workload {
			case "web":
				return "no webhook is called", nil
			case "web2":
				return "", errors.New("the SidecarSet was changed")
			}
			return "", nil
		}
		done, passed, err := c.run(t.Context(), false)
		if done != "" || passed != "web: no webhook is called\n" || err == nil || err.Error() != "Deployment shop/web2: the SidecarSet was changed" || len(c.evicted)+len(c.restarted) > 0 {
			t.Errorf("done %q, passed %q, evicted %v, %v", done, passed, c.evicted, err)
		}
	})
}

// Budgets are asked for a minute. A Pod that is not Ready is evicted first; a budget may refuse it, too.
func TestBudgets(t *testing.T) {
	t.Parallel()
	for name, refusal := range map[string]error{
		"one": apierrors.NewTooManyRequests("the disruption budget needs 3", 0),
		"two": apierrors.NewInternalError(errors.New("more than one PodDisruptionBudget")),
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, "")
			c.deployment("web", 3)
			c.deployment("web2", 3)
			c.refuses = func(pod string) error {
				if strings.HasPrefix(pod, "web-") {
					return refusal
				}
				return nil
			}
			done, passed, err := c.run(t.Context(), false)
			if err != nil || done != "web2 " || !strings.Contains(passed, "web: Pod web-") || !strings.Contains(passed, refusal.Error()) {
				t.Errorf("%s: done %q, passed %q, %v", name, done, passed, err)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "")
		c.deployment("web", 3)
		notReady(c.objects[3].(*corev1.Pod), "CrashLoopBackOff")
		c.become = func(pod *corev1.Pod, _ time.Duration) { pod.Status = c.objects[2].(*corev1.Pod).Status }
		if done, passed, err := c.run(t.Context(), false); err != nil || done != "web " || !slices.Equal(c.evicted, []string{"web-1"}) {
			t.Errorf("done %q, passed %q, evicted %v, %v", done, passed, c.evicted, err)
		}
	})
}

func TestProtectedPodsAreNotTried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "")
		c.deployment("web", 2)
		protect := func(at int) {
			c.objects[at].SetAnnotations(map[string]string{"karpenter.sh/do-not-disrupt": "true"})
		}
		protect(2)
		if done, _, err := c.run(t.Context(), false); err != nil || done != "web " || !slices.Equal(c.evicted, []string{"web-1"}) {
			t.Errorf("done %q, evicted %v, %v", done, c.evicted, err)
		}
		protect(3)
		if done, passed, err := c.run(t.Context(), false); err != nil || done != "" || !strings.Contains(passed, "forbid to evict") {
			t.Errorf("done %q, passed %q, %v", done, passed, err)
		}
	})
}

func TestOtherPodsAreEvictedOneByOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "")
		for i := range 3 {
			c.pod(fmt.Sprint("clone-", i), controlledBy("apps.kruise.io/v1alpha1", "CloneSet", "clone"))
		}
		c.pod("job-0", controlledBy("batch/v1", "Job", "job"))
		atOnce := 0
		c.refuses = func(string) error {
			for _, born := range c.born {
				if time.Since(born) < 30*time.Second {
					atOnce++
				}
			}
			return nil
		}
		done, passed, err := c.run(t.Context(), true)
		if err != nil || done != "clone " || passed != "" || len(c.evicted) != 3 || len(c.restarted) > 0 || atOnce > 0 {
			t.Errorf("done %q, passed %q, evicted %v, restarted %v, %d at once, %v", done, passed, c.evicted, c.restarted, atOnce, err)
		}
	})
}

func TestAnInterruptedRunSaysSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "")
		c.deployment("web", 3)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, _, err := c.run(ctx, false); err == nil || !strings.Contains(err.Error(), "interrupted after Pod web-") {
			t.Errorf("interrupted: %v", err)
		}
	})
}

// Two of four Pods have the label of the canary: a restart would replace the other two.
func TestPodsThatTheSelectorLeavesOutStay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "  updateStrategy: {selector: {matchLabels: {canary: \"yes\"}}}\n")
		c.deployment("web", 4)
		for i, object := range c.objects {
			pod, is := object.(*corev1.Pod)
			if !is {
				continue
			}
			old := c.injected(pod)
			for key, value := range old.Annotations { // an earlier revision, which differs in more than images
				if at := strings.Index(value, `"hash":"`); at >= 0 {
					old.Annotations[key] = value[:at+8] + "old" + value[at+11:]
				}
			}
			if old.Name == "web-0" || old.Name == "web-1" {
				old.Labels["canary"] = "yes"
			}
			c.objects[i] = old
		}
		if s := c.find(false); len(s.Workloads) != 1 || s.Workloads[0].Pods() != 2 || !strings.Contains(s.Workloads[0].Named, "updateStrategy.selector leaves out its Pod web-") {
			t.Errorf("%+v", s.Workloads)
		}
		done, passed, err := c.run(t.Context(), true)
		left := 0
		for _, pod := range c.pods() {
			if strings.HasPrefix(pod.Name, "web-") && pod.Labels["canary"] == "" {
				left++
			}
		}
		slices.Sort(c.evicted)
		if left != 2 || !slices.Equal(c.evicted, []string{"web-0", "web-1"}) || len(c.restarted) > 0 {
			t.Errorf("done %q, passed %q, %v: evicted %v, restarted %v, %d of the 2 Pods that the selector leaves out are still there", done, passed, err, c.evicted, c.restarted, left)
		}
	})
}

// A rollout of the workload that is under way, such as that of an interrupted run, is waited for;
// but not one whose newest Pod needs to be replaced, since it may never end.
func TestARolloutThatIsUnderWayIsWaitedFor(t *testing.T) {
	t.Parallel()
	for _, newest := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, "")
			c.deployment("web", 3, func(d *appsv1.Deployment) { d.Status.UpdatedReplicas = 1 })
			began := time.Now()
			c.then = func() {
				if newest {
					return
				}
				if err := c.replace(t.Context(), c.client, c.objects[2].(*corev1.Pod)); err != nil {
					t.Fatal(err)
				}
				time.AfterFunc(5*time.Minute, func() {
					d := &appsv1.Deployment{}
					if err := c.client.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "web"}, d); err != nil {
						t.Error(err)
					}
					d.Status.UpdatedReplicas = 3
					if err := c.client.Status().Update(t.Context(), d); err != nil {
						t.Error(err)
					}
				})
			}
			c.refuses = func(string) error {
				if waited := time.Since(began) > 4*time.Minute; waited == newest {
					t.Errorf("evicted after %s", time.Since(began))
				}
				return nil
			}
			_, _, _ = c.run(t.Context(), false)
			if len(c.evicted) != 1 {
				t.Errorf("evicted %v: %q", c.evicted, c.said)
			}
		})
	}
}
