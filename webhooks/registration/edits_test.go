package registration

import (
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
)

// weaken edits each webhook as some programs do it.
func weaken(edited *admissionregistrationv1.MutatingWebhookConfiguration) {
	for i := range edited.Webhooks {
		edited.Webhooks[i].MatchPolicy = new(admissionregistrationv1.Exact)
	}
	edited.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: "sidecarset-operator", Time: new(metav1.Unix(3, 0)), FieldsV1: metav1.NewFieldsV1(`{"f:webhooks":{}}`)},
		{Manager: "weakener", Time: new(metav1.Unix(2, 0)), FieldsV1: metav1.NewFieldsV1(`{"f:webhooks":{}}`)},
		{Manager: "kubectl", Time: new(metav1.Unix(1, 0)), FieldsV1: metav1.NewFieldsV1(`{"f:webhooks":{}}`)},
		{Manager: "labeller", Time: new(metav1.Unix(3, 0)), FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{}}`)},
	}
}

const editedAgain = "Another program (field manager weakener) keeps editing the Pod webhooks in MutatingWebhookConfiguration sidecarset-pods-"

// If another program edits each object that the leader writes, the leader pauses, as after any write that does not help.
func TestTheLeaderPausesAgainstAProgramThatEditsWebhooks(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		c.meddle = weaken
		for range 1000 {
			l.judged(t)
		}
		if c.writes > 3 {
			t.Errorf("%d writes without a pause", c.writes)
		}
		if got := l.judged(t); got.Ready || got.Unsure || got.Reason != appsv1beta1.ReasonWebhookModified || !strings.HasPrefix(got.Message, editedAgain) {
			t.Errorf("it says %+v", got)
		}
		c.meddle = nil
		<-time.After(longestRest)
		l.judged(t)
		<-time.After(2 * longestRest)
		if got := l.judged(t); !got.Ready {
			t.Errorf("nobody edits it any more, and the leader says %+v", got)
		}
	})
}

// The user who applies a SidecarSet does not wait until the leader undoes edits in the same object.
func TestNoSidecarSetWaitsForTheEndOfAPause(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		c.meddle = weaken
		for range 5 {
			l.judged(t)
		}
		c.meddle = nil
		set := fixtures.LogSet(1)
		set.Name = "another"
		c.have(fixtures.LogSet(1), set)
		l.judged(t)
		if len(c.dependencies(t, set)) != 1 {
			t.Error("it waits")
		}
	})
}
