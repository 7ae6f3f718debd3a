package executor

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/tracker"
)

func TestTheConditionSaysWhichSidecarSetsCanBeUpdated(t *testing.T) {
	early, now := metav1.NewTime(time.Unix(1000, 0)), time.Unix(2000, 0)
	is := func(status corev1.ConditionStatus, reason, message string, since time.Time) corev1.PodCondition {
		return corev1.PodCondition{Type: "SidecarSetUpgradable", Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(since)}
	}
	yes := func(message string, since time.Time) corev1.PodCondition {
		return is("True", "AllSidecarsetUpgradable", message, since)
	}
	no := func(message string, since time.Time) corev1.PodCondition {
		return is("False", "UpdateImmutableField", message, since)
	}
	tests := map[string]struct {
		before     []corev1.PodCondition
		upgradable bool
		want       corev1.PodCondition
		same       bool
	}{
		"the first word":                           {nil, true, yes(`{"log":true}`, now), false},
		"it cannot follow":                         {nil, false, no(`{"log":false}`, now), false},
		"nothing new":                              {[]corev1.PodCondition{no(`{"log":false}`, early.Time)}, false, no(`{"log":false}`, early.Time), true},
		"it can follow again":                      {[]corev1.PodCondition{no(`{"log":false}`, early.Time)}, true, yes(`{"log":true}`, now), false},
		"another SidecarSet's word stays":          {[]corev1.PodCondition{no(`{"mesh":false}`, early.Time)}, true, no(`{"log":true,"mesh":false}`, early.Time), false},
		"T23: a SidecarSet that is not carried":    {[]corev1.PodCondition{no(`{"gone":false,"log":true}`, early.Time)}, true, yes(`{"log":true}`, now), false},
		"C23: a SidecarSet that is deleted":        {[]corev1.PodCondition{no(`{"deleted":false,"log":true}`, early.Time)}, true, yes(`{"log":true}`, now), false},
		"a message that cannot be read":            {[]corev1.PodCondition{no(`sorry`, early.Time)}, true, yes(`{"log":true}`, now), false},
		"a message that is not about SidecarSets":  {[]corev1.PodCondition{no(`[1]`, early.Time)}, false, no(`{"log":false}`, early.Time), false},
		"a message that is null":                   {[]corev1.PodCondition{yes(`null`, early.Time)}, false, no(`{"log":false}`, now), false},
		"conditions of other types are left alone": {[]corev1.PodCondition{{Type: "Ready", Status: "True"}}, true, yes(`{"log":true}`, now), false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{appsv1beta1.AnnotationInjectedList: "deleted,log,mesh"}}}
			pod.Status.Conditions = tc.before
			got, differs := upgradableCondition(pod, "log", tc.upgradable, func(name string) bool { return name == "deleted" }, now)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("the condition (-want +got):\n%s", diff)
			}
			if differs == tc.same {
				t.Errorf("it is written: %t", differs)
			}
		})
	}
}

// A Label is one read and one write, of the condition that the table above has.
func TestLabels(t *testing.T) {
	conflict := apierrors.NewConflict(corev1.Resource("pods"), "p", errors.New("another writer was faster"))
	forbidden := apierrors.NewForbidden(corev1.Resource("pods"), "p", errors.New("hands off"))
	follows := corev1.PodCondition{Type: "SidecarSetUpgradable", Status: "True", Reason: "AllSidecarsetUpgradable", Message: `{"log":true}`}
	for name, tc := range map[string]struct {
		change  func(*corev1.Pod)
		fails   error // once
		verbs   string
		kind    string
		reason  inplace.Reason
		message string
	}{
		"the first word":           {func(*corev1.Pod) {}, nil, "get patch/status", isWritten, "", `{"log":true}`},
		"C23: one that is deleted": {func(p *corev1.Pod) { said(p).Message = `{"deleted":false}` }, nil, "get patch/status", isWritten, "", `{"log":true}`},
		"nothing new":              {func(p *corev1.Pod) { *said(p) = follows }, nil, "get", isWritten, "", `{"log":true}`},
		"in conflict":              {func(*corev1.Pod) {}, conflict, "get patch/status get patch/status", isWritten, "", `{"log":true}`},
		"refused":                  {func(*corev1.Pod) {}, forbidden, "get patch/status", isRest, inplace.WriteRejected, ""},
		"another has its name":     {func(p *corev1.Pod) { p.UID = "other" }, nil, "get", isStale, "", ""},
		"it is not selected":       {func(p *corev1.Pod) { p.Labels = nil }, nil, "get", isStale, "", ""},
		"it is not injected":       {func(p *corev1.Pod) { delete(p.Annotations, "kruise.io/sidecarset-injected-list") }, nil, "get", isStale, "", ""},
		"it is finished":           {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, nil, "get", isStale, "", ""},
		"it is outdated":           {func(p *corev1.Pod) { record(p, compiled(t, "side:v0")) }, nil, "get", isStale, "", ""},
		"only a new Pod can follow": {func(p *corev1.Pod) {
			delete(p.Annotations, "kruise.io/sidecarset-hash-without-image")
			record(p, sizedCompiled(t, "1"))
		}, nil, "get patch/status", isWritten, "", `{"log":false}`},
	} {
		t.Run(name, func(t *testing.T) {
			p := outdated(t, "p")
			p.Annotations["kruise.io/sidecarset-injected-list"] = "deleted,log"
			tc.change(p)
			r := newRig(t, p)
			r.follow(compiled(t, "side:v1"))
			r.item.Revision = r.item.Revision.With(inplace.Differences{})
			if tc.fails != nil {
				r.failPatches(1, false, tc.fails)
			}
			check(t, r.try(t, "p", tracker.Label), tc.kind, tc.reason, "")
			if r.verbs() != tc.verbs {
				t.Errorf("requests are %q, want %q", r.verbs(), tc.verbs)
			}
			message := ""
			if c := podstate.Condition(r.pod(t, "p"), "SidecarSetUpgradable"); c != nil {
				message = c.Message
			}
			if message != tc.message {
				t.Errorf("the condition says %s, want %s", message, tc.message)
			}
		})
	}
}

// said gives a Pod the condition, without a word.
func said(p *corev1.Pod) *corev1.PodCondition {
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: "SidecarSetUpgradable"})
	return &p.Status.Conditions[len(p.Status.Conditions)-1]
}
