package executor

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/tally"
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

// The first value of the condition costs one request. If the condition has a value, the Pod is
// read.
func TestTheFirstWriteOfTheConditionNeedsNoRead(t *testing.T) {
	conflict := apierrors.NewConflict(corev1.Resource("pods"), "p", errors.New("another Pod has its name"))
	for name, tc := range map[string]struct {
		uid       types.UID // of the chore
		first     bool
		conflicts bool
		said      []corev1.PodCondition
		want      string // verbs
		message   string
	}{
		"the first word":              {"p", true, false, nil, "patch", `{"log":true}`},
		"another Pod has its name":    {"other", true, true, nil, "patch get", ""},
		"not the first":               {"p", false, false, []corev1.PodCondition{{Type: "SidecarSetUpgradable", Message: `{"mesh":true}`}}, "get patch", `{"log":true,"mesh":true}`},
		"C23: one that is deleted":    {"p", false, false, []corev1.PodCondition{{Type: "SidecarSetUpgradable", Message: `{"deleted":false}`}}, "get patch", `{"log":true}`},
		"nothing new":                 {"p", false, false, []corev1.PodCondition{{Type: "SidecarSetUpgradable", Status: "True", Reason: "AllSidecarsetUpgradable", Message: `{"log":true}`}}, "get", `{"log":true}`},
		"the first word, in conflict": {"p", true, true, nil, "patch get patch", `{"log":true}`},
	} {
		t.Run(name, func(t *testing.T) {
			p := outdated(t, "p")
			p.Annotations["kruise.io/sidecarset-injected-list"] = "deleted,log,mesh"
			p.Status.Conditions = append(p.Status.Conditions, tc.said...)
			r := newRig(t, p)
			following := program(t, "side:v1")
			mesh := *following
			mesh.Set = following.Set.DeepCopy()
			mesh.Set.Name = "mesh"
			r.now = match.Build([]*inject.Program{following, &mesh}, map[string]labels.Set{"a": {}})
			conflicts := tc.conflicts
			r.client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				failed := conflicts
				conflicts = false
				return failed, nil, conflict
			})
			about := podstate.FromPod(p)
			about.UID = tc.uid
			wait := failureWait
			if strings.HasSuffix(tc.want, "get patch") { // else nothing was read, or written
				wait = staleWait
			}
			if got := r.attend(t.Context(), tally.Due{Program: following, Content: inplace.ContentOf(following)}, tally.Chore{Pod: about, FirstWord: tc.first}); got != wait {
				t.Errorf("the Pod is looked at after %s, want %s", got, wait)
			}
			var verbs []string
			for _, action := range r.client.Actions() {
				verbs = append(verbs, action.GetVerb())
			}
			if got := strings.Join(verbs, " "); got != tc.want {
				t.Errorf("requests are %q, want %q", got, tc.want)
			}
			after, err := r.client.CoreV1().Pods("a").Get(t.Context(), "p", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			message := ""
			for _, c := range after.Status.Conditions {
				if c.Type == "SidecarSetUpgradable" {
					message = c.Message
				}
			}
			if message != tc.message {
				t.Errorf("the condition says %s, want %s", message, tc.message)
			}
		})
	}
}

// The content of one Pod must not end the process.
func TestAPanicIsAnError(t *testing.T) {
	var none map[string]bool
	err := contained(t.Context(), func() { none["a"] = true })
	if err == nil || !strings.Contains(err.Error(), "nil map") {
		t.Errorf("contained returns %v", err)
	}
	if err := contained(t.Context(), func() {}); err != nil {
		t.Error(err)
	}
}
