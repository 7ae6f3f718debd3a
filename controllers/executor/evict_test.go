package executor

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/recreate"
	"github.com/sidecarset/operator/internal/rollout"
)

// newRecreation is a rig with a Pod that cannot be updated in place, and is to be evicted.
func newRecreation(t *testing.T) *rig {
	t.Helper()
	p := outdated(t, "p")
	own(p)
	r := newRig(t, p)
	next := *program(t, "side:v2")
	next.HashWithoutImage = "another"
	r.recreate(&next)
	r.due.Content = r.due.Content.With(inplace.Differences{})
	return r
}

// recreate makes a Program the current one, whose Pods are to be recreated.
func (r *rig) recreate(p *inject.Program) {
	next, content := *p, r.due.Content
	next.Set = next.Set.DeepCopy()
	next.Set.Annotations = map[string]string{"sidecarset.io/recreate": "Outdated"}
	r.follow(&next)
	if differences := content.Differences(); differences != nil {
		r.due.Content = r.due.Content.With(differences)
	}
	r.due.Since = 900
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

func TestEvictionAnswersDecideTheResult(t *testing.T) {
	budget := statusError(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause})
	tests := map[string]struct {
		err    error
		fails  int // the number of requests that fail
		asked  int
		kind   rollout.ResultKind
		reason inplace.Reason
		says   string
	}{
		"it is evicted":                    {nil, 0, 1, rollout.Evicted, "", ""},
		"a PodDisruptionBudget is used up": {budget, 99, 1, rollout.Protected, recreate.DisruptionBudget, "no no"},
		"another writer was faster":        {statusError(http.StatusConflict, metav1.StatusReasonConflict), 2, 3, rollout.Evicted, "", ""},
		"another writer always is":         {statusError(http.StatusConflict, metav1.StatusReasonConflict), 99, attempts, rollout.Stale, "", ""},
		"the Pod is gone":                  {statusError(http.StatusNotFound, metav1.StatusReasonNotFound), 99, 1, rollout.Stale, "", ""},
		"the operator may not":             {statusError(http.StatusForbidden, metav1.StatusReasonForbidden), 99, 1, rollout.Refused, recreate.EvictionRefused, "config/recreate"},
		"two PodDisruptionBudgets":         {statusError(http.StatusInternalServerError, metav1.StatusReasonInternalError), 99, 1, rollout.Refused, recreate.EvictionRefused, "no no"},
		"a time-out":                       {context.DeadlineExceeded, 99, 1, rollout.Failed, inplace.WriteFailed, "deadline"},
		"a time-out of one that came true": {context.DeadlineExceeded, -1, 1, rollout.Evicted, "", ""},
		"it does not lead":                 {errNotLeading, 99, 1, rollout.Stale, "", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRecreation(t)
			fails := tc.fails
			asked := r.answerEvictions(func(e *policyv1.Eviction) error {
				if p := e.DeleteOptions.Preconditions; p == nil || *p.UID != "p" || *p.ResourceVersion != "7" {
					t.Errorf("the preconditions are %+v", p)
				}
				if fails < 0 {
					return errors.Join(tc.err, r.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "a", "p"))
				}
				if fails--; fails >= 0 {
					return tc.err
				}
				return nil
			})
			check(t, r.try(t, "p", inplace.Recreate), tc.kind, tc.reason, tc.says)
			if asked["p"] != tc.asked {
				t.Errorf("the API server is asked %d times, want %d", asked["p"], tc.asked)
			}
		})
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
			r := newRecreation(t)
			asked := r.answerEvictions(func(*policyv1.Eviction) error { return nil })
			r.change(t, "p", change)
			check(t, r.try(t, "p", inplace.Recreate), rollout.Stale, "", "")
			if len(asked) != 0 {
				t.Errorf("the API server is asked to evict %v", asked)
			}
		})
	}
}

// A Pod that a write has shown to be stuck is evicted if it still is.
func TestStuckPodsAreEvicted(t *testing.T) {
	for name, tc := range stuckPods {
		t.Run(name, func(t *testing.T) {
			r := newStuckRig(t, name)
			r.recreate(r.due.Program)
			r.change(t, "p", own)
			asked := r.answerEvictions(func(*policyv1.Eviction) error { return nil })
			got := r.try(t, "p", inplace.Recreate)
			if want := !tc.stays; (got.Kind == rollout.Evicted) != want || (asked["p"] == 1) != want {
				t.Errorf("the result is %+v", got)
			}
			if tc.node == nil {
				r.change(t, "p", func(p *corev1.Pod) {
					p.Spec.Containers[0].Resources, p.Spec.Containers[1].Resources = corev1.ResourceRequirements{}, requests("1")
				})
				check(t, r.try(t, "p", inplace.Recreate), rollout.Stale, "", "")
			}
		})
	}
}
