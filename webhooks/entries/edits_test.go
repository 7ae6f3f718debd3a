package entries

import (
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/status"
)

func TestTheLeaderRemovesWebhooksOfOthers(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		l.judged(t)
		c.edit(func(edited *admissionregistrationv1.MutatingWebhookConfiguration) {
			edited.Webhooks = append(edited.Webhooks, admissionregistrationv1.MutatingWebhook{Name: "secrets.example.com"})
		})
		l.judged(t)
		for name, object := range c.configurations {
			for i := range object.Webhooks {
				if object.Webhooks[i].Name == "secrets.example.com" {
					t.Errorf("it is left in %s", name)
				}
			}
		}
	})
}

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

const editedAgain = "Another program (field manager weakener) keeps editing the webhook entries in MutatingWebhookConfiguration sidecarset-pods-"

// If another program edits each object that the leader writes, the leader waits longer and
// longer.
func TestTheLeaderPausesAgainstAProgramThatEditsEntries(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		c.meddle = weaken
		for range 1000 {
			l.judged(t)
		}
		if c.writes > 3 {
			t.Errorf("%d writes without a pause", c.writes)
		}
		if got := l.judged(t); got.Ready || got.Unsure || got.Reason != appsv1beta1.ReasonEntryEdited || !strings.HasPrefix(got.Message, editedAgain) {
			t.Errorf("it says %+v", got)
		}
		before, start := c.writes, time.Now()
		for time.Since(start) < 10*time.Minute {
			<-time.After(100 * time.Millisecond)
			l.judged(t)
		}
		if got := c.writes - before; got < 13 || got > 15 { // after 1, 2, 4, 8, 16 and 32 s, and then one a minute
			t.Errorf("%d writes in ten minutes", got)
		}
		c.meddle = nil
		<-time.After(longestWait)
		l.judged(t)
		<-time.After(pauseOfEdits)
		if got := l.judged(t); !got.Ready {
			t.Errorf("nobody edits it any more, and the leader says %+v", got)
		}
	})
}

// The author of a SidecarSet does not wait until the leader undoes edits in the same object.
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
		if len(c.needs(t, set)) != 1 {
			t.Error("it waits")
		}
	})
}

// Between two edits, the restored entry is correct. If the leader wrote Ready each time, the
// condition would change for ever.
func TestReadyIsNotReportedBetweenRepeatedEdits(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		edit := func() status.Readiness {
			c.edit(weaken)
			<-time.After(longestWait)
			return l.judged(t)
		}
		l.judged(t)
		for i := range editsOfAProgram - 1 {
			if got := edit(); !got.Ready {
				t.Fatalf("restored for the %d. time, and the leader says %+v", i+1, got)
			}
		}
		for range 100 {
			if got := edit(); got.Ready || got.Unsure || got.Reason != appsv1beta1.ReasonEntryEdited || !strings.HasPrefix(got.Message, editedAgain) {
				t.Fatalf("it says %+v", got)
			}
		}
		<-time.After(pauseOfEdits)
		if got := l.judged(t); !got.Ready {
			t.Errorf("nobody edits it any more, and the leader says %+v", got)
		}
		if got := edit(); !got.Ready {
			t.Errorf("one edit after a long time, and the leader says %+v", got)
		}
	})
}

// The leader has no end of writes if another program keeps changing what is no webhook, or changes
// what is being written.
func TestTheLeaderPausesAgainstEveryKindOfEdit(t *testing.T) {
	for name, edits := range map[string]func(c *cluster){
		"owners": func(c *cluster) {
			c.meddle = func(edited *admissionregistrationv1.MutatingWebhookConfiguration) { edited.OwnerReferences = nil }
		},
		"what is being written": func(c *cluster) {
			c.writing = func(written *admissionregistrationv1.MutatingWebhookConfiguration) error { weaken(written); return nil }
		},
	} {
		t.Run(name, func(t *testing.T) {
			leading(t, func(t *testing.T, l *leader, c *cluster) {
				edits(c)
				for range 1000 {
					l.judged(t)
				}
				if got := l.judged(t); c.writes > 3 || got.Reason != appsv1beta1.ReasonEntryEdited {
					t.Errorf("after %d writes without a pause it says %+v", c.writes, got)
				}
			})
		})
	}
}

// Clouds leave out namespaces of their own, again and again.
func TestWhatAnotherProgramLeavesOutIsTold(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		c.meddle = func(edited *admissionregistrationv1.MutatingWebhookConfiguration) {
			for i := range edited.Webhooks {
				s := edited.Webhooks[i].NamespaceSelector
				if !strings.Contains(metav1.FormatLabelSelector(s), "!system") {
					s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: "system", Operator: metav1.LabelSelectorOpDoesNotExist})
				}
			}
		}
		for range 100 {
			l.judged(t)
		}
		if c.writes > 1 {
			t.Errorf("%d writes", c.writes)
		}
		if got := l.judged(t); !got.Ready || !strings.HasSuffix(got.Message, " Another program leaves out namespaces by !system.") {
			t.Errorf("it says %+v", got)
		}
		program, _ := l.catalog.Current().Get("log")
		for all, namespaces := range map[bool]map[string]labels.Set{
			true:  {"a": {"system": "1"}},
			false: {"a": {"system": "1"}, "b": {}},
		} {
			c.sets.SwapSnapshot(match.Build([]*inject.Program{program}, namespaces))
			if got := l.judged(t); got.Ready == all || all && got.Reason != appsv1beta1.ReasonEntryEdited {
				t.Errorf("with the namespaces %v it says %+v", namespaces, got)
			}
		}
	})
}
