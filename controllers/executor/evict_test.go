package executor

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/recreate"
	"github.com/sidecarset/operator/internal/tally"
)

// absence is how long a new leader waits before it evicts.
const absence = int64(recreate.DefaultCreation / time.Second)

// newRecreation is a rig with Pods that cannot be updated in place, and are to be evicted.
func newRecreation(t *testing.T, names ...string) *rig {
	t.Helper()
	var pods []*corev1.Pod
	for _, name := range names {
		p := outdated(t, name)
		own(p)
		pods = append(pods, p)
	}
	r := newRig(t, pods...)
	next := *program(t, "side:v2")
	next.HashWithoutImage = "another"
	r.recreate(&next, "Outdated")
	r.tally.SetContents("log", next.HashWithoutImage, tally.Contents{})
	return r
}

// recreate makes a Program the current one, with this mode, for a leader that may evict
// Pods.
func (r *rig) recreate(p *inject.Program, mode string) {
	next := *p
	next.Set = next.Set.DeepCopy()
	next.Set.Annotations = map[string]string{"sidecarset.io/recreate": mode}
	r.now = match.Build([]*inject.Program{&next}, map[string]labels.Set{"a": {}})
	r.tally.SetSnapshot(r.now)
	r.tally.Watched(1)
	r.tally.Settle(time.Unix(1000, 0))
	r.tally.SetCurrent("log", tally.Current{Program: &next, Revision: next.Revision(), Since: time.Unix(900, 0), InForce: true})
	r.tally.Settle(time.Unix(1000+absence, 0))
}

// own makes a Pod one of a ReplicaSet, older than the content.
func own(p *corev1.Pod) {
	p.CreationTimestamp = metav1.Unix(500, 0)
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", UID: "rs", Controller: new(true)}}
}

// answerEvictions has the API server answer evictions, and counts them by Pod.
func (r *rig) answerEvictions(answer func(*policyv1.Eviction) error) map[string]int {
	asked := map[string]int{}
	r.client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetSubresource() != "eviction" {
			return false, nil, nil
		}
		eviction := action.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
		r.mu.Lock()
		asked[eviction.Name]++
		r.mu.Unlock()
		return true, nil, answer(eviction)
	})
	return asked
}

func statusError(code int32, reason metav1.StatusReason, causes ...metav1.StatusCause) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: reason, Message: strings.Repeat("no ", 100), Details: &metav1.StatusDetails{Causes: causes},
	}}
}

func TestEvictionAnswersDecideAboutRetriesAndTheBudget(t *testing.T) {
	tests := map[string]struct {
		err       error
		fails     int // the number of requests that fail
		asked     int
		used      int // places of the budget that are used
		blocked   string
		mentioned string
	}{
		"it is evicted":                    {nil, 0, 1, 1, "Evicted", ""},
		"a PodDisruptionBudget is used up": {statusError(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause}), 99, 1, 0, "DisruptionBudget", "no no"},
		"another writer was faster":        {statusError(http.StatusConflict, metav1.StatusReasonConflict), 2, 3, 1, "Evicted", ""},
		"another writer always is":         {statusError(http.StatusConflict, metav1.StatusReasonConflict), 99, attempts, 1, "", ""}, // it is tried again in a moment
		"the Pod is gone":                  {statusError(http.StatusNotFound, metav1.StatusReasonNotFound), 99, 1, 1, "", ""},
		"the operator may not":             {statusError(http.StatusForbidden, metav1.StatusReasonForbidden), 99, 1, 0, "EvictionRefused", "config/recreate"},
		"two PodDisruptionBudgets":         {statusError(http.StatusInternalServerError, metav1.StatusReasonInternalError), 99, 1, 0, "EvictionRefused", "no no"},
		"a time-out":                       {context.DeadlineExceeded, 99, 1, 0, "WriteFailed", "deadline"},
		"it does not lead":                 {errNotLeading, 99, 1, 1, "", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRecreation(t, "p")
			fails := tc.fails
			asked := r.answerEvictions(func(e *policyv1.Eviction) error {
				if p := e.DeleteOptions.Preconditions; p == nil || *p.UID != "p" || *p.ResourceVersion != "7" {
					t.Errorf("the preconditions are %+v", p)
				}
				if fails--; fails >= 0 {
					return tc.err
				}
				return nil
			})
			r.pass(t)
			if asked["p"] != tc.asked {
				t.Errorf("the API server is asked %d times, want %d", asked["p"], tc.asked)
			}
			report, blocked := r.report(), ""
			for _, group := range report.Blocked {
				blocked += group.Reason
				if !strings.Contains(group.Message, tc.mentioned) {
					t.Errorf("the message is %q, want it to mention %q", group.Message, tc.mentioned)
				}
			}
			if blocked != tc.blocked || report.Used != tc.used {
				t.Errorf("blocked for %q, %d places used; want %q, %d", blocked, report.Used, tc.blocked, tc.used)
			}
		})
	}
}

// A timeout may hide an eviction that was carried out.
func TestAnEvictionWhoseAnswerIsLost(t *testing.T) {
	r := newRecreation(t, "p")
	r.answerEvictions(func(*policyv1.Eviction) error {
		if err := r.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "a", "p"); err != nil {
			t.Error(err)
		}
		return errors.New("connection reset")
	})
	r.pass(t)
	if report := r.report(); report.Used != 1 {
		t.Errorf("%+v, want the place of the evicted Pod to be taken", report)
	}
}

// A PodDisruptionBudget refuses all Pods. The API server is asked once for each, and the retry
// delay grows with the time since the first refusal.
func TestPodDisruptionBudgetsHold(t *testing.T) {
	r := newRecreation(t, "p", "q", "r")
	asked := r.answerEvictions(func(*policyv1.Eviction) error {
		return statusError(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause})
	})
	for range 5 {
		r.pass(t)
	}
	if len(asked) != 3 || asked["p"]+asked["q"]+asked["r"] != 3 {
		t.Errorf("the API server is asked %v, want each Pod once", asked)
	}
	p, pod, now := newPatience(), outdated(t, "p"), time.Now()
	for refusedFor, want := range map[time.Duration]time.Duration{0: budgetWait, budgetWait: budgetWait, time.Minute: time.Minute, time.Hour: maxBudgetWait} {
		p.end(pod)
		p.next(pod, now)
		if got := p.next(pod, now.Add(refusedFor)); got != want {
			t.Errorf("after %s a Pod rests %s, want %s", refusedFor, got, want)
		}
	}
}

// The Pod is read before it is evicted, which shows changes that the watch has not delivered.
func TestAPodIsLookedAtBeforeItIsEvicted(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"it forbids it":              func(p *corev1.Pod) { p.Annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] = "false" },
		"it is another Pod":          func(p *corev1.Pod) { p.UID = "another" },
		"it is finished":             func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded },
		"it has lost its controller": func(p *corev1.Pod) { p.OwnerReferences = nil },
		"it is not selected":         func(p *corev1.Pod) { p.Labels = nil },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRecreation(t, "p")
			asked := r.answerEvictions(func(*policyv1.Eviction) error { return nil })
			p := outdated(t, "p")
			own(p)
			change(p)
			if err := r.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), p, "a"); err != nil {
				t.Fatal(err)
			}
			r.pass(t)
			if len(asked) != 0 {
				t.Errorf("the API server is asked to evict %v", asked)
			}
		})
	}
}
