package entries

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/status"
)

func TestTheLeaderTellsOfAnEntryThatItRestored(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		l.judged(t)
		for name := range c.configurations {
			without := c.configurations[name].DeepCopy()
			without.Webhooks = nil
			c.change(without)
		}
		if len(c.told) != 0 {
			t.Errorf("the leader tells of %q before anything was lost", c.told)
		}
		for range 3 {
			l.judged(t)
		}
		if want := []string{"log EntryRestored"}; !slices.Equal(c.told, want) {
			t.Errorf("the leader tells of %q, want %q", c.told, want)
		}
	})
}

// An API server may end the watch of SidecarSets before it has sent the last deletions. If
// entries stayed, API servers would refuse every selected Pod for ever.
func TestEntriesGoWithTheDefinitionWhateverTheSnapshotHolds(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		left := func() (entries int) {
			for _, object := range c.configurations {
				entries += len(object.Webhooks)
			}
			return entries
		}
		l.judged(t)
		if left() == 0 {
			t.Fatal("there is no entry to begin with")
		}
		c.undefined = true
		<-time.After(definitionRecheck)
		for range 3 {
			if l.judged(t); left() != 0 {
				t.Fatalf("%d entries are left", left())
			}
		}
		c.undefined = false
		if l.judged(t); left() == 0 {
			t.Error("the definition is back with a SidecarSet, which has no entry")
		}
	})
}

func TestTheLeaderSaysWhatKeepsAnEntryFromBeingWritten(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		c.err = errors.New("a policy forbids it")
		if got := l.judged(t); got.Reason != appsv1beta1.ReasonNotInForce || !strings.Contains(got.Message, "a policy forbids it") {
			t.Errorf("it says %+v", got)
		}
		c.err = nil
		if got := l.judged(t); !got.Ready {
			t.Errorf("it was written, and the leader says %+v", got)
		}
	})
}

// If the SidecarSet were Ready, a user who waits for that would see every Pod refused.
func TestASidecarSetThatNoPodCanHaveIsNotReady(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		object := fixtures.SidecarSet("log").Select("app", "web").Container("log", "log:v1").
			Spec("injectionStrategy", map[string]any{"revision": map[string]any{"revisionName": "log-1", "policy": "Always"}}).Map()
		object["metadata"].(map[string]any)["generation"] = int64(1)
		program, err := inject.Compile(object)
		if err != nil {
			t.Fatal(err)
		}
		catalog := match.Build([]*inject.Program{program}, nil)
		l.sets.(*fixtures.Snapshots).SwapSnapshot(catalog)
		if got := l.judged(t); got.Ready || got.Unsure || got.Reason != appsv1beta1.ReasonInvalid || !strings.Contains(got.Message, "spec.injectionStrategy.revision") {
			t.Errorf("while its revision is not recorded it says %+v", got)
		}
		l.sets.(*fixtures.Snapshots).SwapSnapshot(catalog.WithHistory(map[string]*inject.Program{"log": program}))
		if got := l.judged(t); !got.Ready {
			t.Errorf("when it is it says %+v", got)
		}
	})
}

// Ready would promise that the next selected Pod is injected, but no Pod can be selected.
func TestASidecarSetThatCanSelectNoPodIsNotReady(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		l.webhooks.options.Settings.ExcludedNamespaces = []string{"ours", "kube-system"}
		set := fixtures.LogSet(1)
		set.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "kube-system"}}
		l.sets.(*fixtures.Snapshots).Swap(set)
		if got := l.judged(t); got.Ready || got.Unsure || got.Reason != appsv1beta1.ReasonNothingSelected || !strings.Contains(got.Message, "kube-system") {
			t.Errorf("for an excluded namespace it says %+v", got)
		}
		set = fixtures.LogSet(1)
		set.Spec.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpDoesNotExist}}
		l.sets.(*fixtures.Snapshots).Swap(set)
		if got := l.judged(t); got.Ready || got.Unsure || got.Reason != appsv1beta1.ReasonNothingSelected || !strings.Contains(got.Message, "label app") {
			t.Errorf("for a selector that contradicts itself it says %+v", got)
		}
	})
}

func TestInStaticModeTheEntryHasToBeThere(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		l.webhooks.options.Static = true
		if got := l.judged(t); got.Ready || got.Unsure || !strings.Contains(got.Message, "config/overlays/static") {
			t.Errorf("without an entry it says %+v", got)
		}
		l.webhooks.options.Rivals.ours["admins"] = false
		if got := l.judged(t); got.Ready || !got.Unsure || got.Reason != appsv1beta1.ReasonNotInForce {
			t.Errorf("while a replica may trust an older snapshot it says %+v", got)
		}
		<-time.After(trusted)
		if got := l.judged(t); !got.Ready || c.writes != 0 {
			t.Errorf("after %d writes, with an entry, it says %+v", c.writes, got)
		}
	})
}

// The leader leaves an entry out if the API server refuses it, so that the other entries can
// be written. It tries again later, because the reason may have been the CA bundle or the
// version of the API server.
func TestAnEntryThatIsRefusedIsTriedAgain(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		c.err = apierrors.NewInvalid(admissionregistrationv1.SchemeGroupVersion.WithKind("MutatingWebhookConfiguration").GroupKind(), "sidecarset-pods",
			field.ErrorList{field.Invalid(field.NewPath("caBundle"), "", "unable to load root certificates")})
		for range 100 {
			if got := l.judged(t); got.Ready || got.Reason != appsv1beta1.ReasonEntryRefused || !strings.Contains(got.Message, "unable to load root certificates") {
				t.Fatalf("it says %+v", got)
			}
		}
		if c.writes > 2 {
			t.Errorf("%d writes of what was refused", c.writes)
		}
		c.err = nil
		<-time.After(refusedFor)
		if got := l.judged(t); !got.Ready {
			t.Errorf("nothing is wrong any more, and the leader says %+v", got)
		}
	})
}

// SidecarSets that are admitted at the same time share their writes. If one has no room, the
// other is still widened.
func TestAnEntryWithoutRoomDoesNotStopOtherAdmissions(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, _ *cluster) {
		admitted := func(name string, namespaces int) *widening {
			set := fixtures.LogSet(1)
			set.Name = name
			set.Spec.Selector.MatchLabels["app"] = name
			in := metav1.LabelSelectorRequirement{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn}
			for i := range namespaces {
				in.Values = append(in.Values, fmt.Sprintf("namespace-%050d", i))
			}
			set.Spec.NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{in}}
			entry, err := entryplan.Of(set)
			if err != nil {
				t.Fatal(err)
			}
			return &widening{entry: entry, done: make(chan error, 1)}
		}
		l.judged(t) // the pass sets the limit of provisional entries
		small, huge := admitted("small", 1), admitted("huge", 20_000)
		l.webhooks.widen(t.Context(), []*widening{huge, small})
		if err := <-small.done; err != nil {
			t.Errorf("the one that has room: %v", err)
		}
		if err := <-huge.done; err == nil || !strings.Contains(err.Error(), "no provisional webhook entry") {
			t.Errorf("the one that has none: %v", err)
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
		set := fixtures.LogSet(2)
		set.Spec.Selector.MatchLabels["app"] = "another"
		l.sets.(*fixtures.Snapshots).Swap(set)
		before := c.writes
		_, _ = l.pass(t.Context())
		if c.writes == before {
			t.Error("it waits")
		}
	})
}

// Between two edits, the restored entry is correct. If the leader wrote Ready each time, the
// condition would change for ever.
func TestReadyIsNotReportedBetweenRepeatedEdits(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		edit := func() status.Readiness {
			for _, stored := range c.configurations {
				edited := stored.DeepCopy()
				weaken(edited)
				c.change(edited)
			}
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
		program, _ := l.sets.Current().Get("log")
		for all, namespaces := range map[bool]map[string]labels.Set{
			true:  {"a": {"system": "1"}},
			false: {"a": {"system": "1"}, "b": {}},
		} {
			l.sets.(*fixtures.Snapshots).SwapSnapshot(match.Build([]*inject.Program{program}, namespaces))
			if got := l.judged(t); got.Ready == all || all && got.Reason != appsv1beta1.ReasonEntryEdited {
				t.Errorf("with the namespaces %v it says %+v", namespaces, got)
			}
		}
	})
}

// podsIn gives the leader a podProbe. answer is the API server's answer to each attempt.
func (l *leader) podsIn(t *testing.T, c *cluster, answer func(ctx context.Context, attempt int) error) (attempts *int) {
	t.Helper()
	attempts = new(int)
	c.pods = func(ctx context.Context, pod *corev1.Pod) error {
		*attempts++
		pod.Annotations = map[string]string{appsv1beta1.AnnotationInjectedList: "log"}
		return answer(ctx, *attempts)
	}
	l.probe = newPodProbe("probes", c, l.wake)
	return attempts
}

func TestARefusedProbePodIsTriedAgainAtIntervals(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		attempts := l.podsIn(t, c, func(_ context.Context, attempt int) error {
			if attempt <= 3 {
				return errors.New("quota exceeded")
			}
			return nil
		})
		if got := l.judged(t); got.Ready || !got.Unsure {
			t.Errorf("before a Pod was tried it says %+v", got)
		}
		synctest.Wait()
		for range 1000 {
			if got := l.judged(t); got.Reason != appsv1beta1.ReasonProbeFailed || !strings.Contains(got.Message, "quota exceeded") {
				t.Fatalf("it says %+v", got)
			}
		}
		if *attempts != 1 {
			t.Errorf("%d attempts at once", *attempts)
		}
		for range 3 {
			<-time.After(probePause)
			l.judged(t)
			synctest.Wait()
		}
		if got := l.judged(t); !got.Ready || *attempts != 4 {
			t.Errorf("after %d attempts it says %+v", *attempts, got)
		}
		<-time.After(probeAgain - time.Second)
		l.judged(t)
		synctest.Wait()
		if *attempts != 4 {
			t.Error("an injected Pod is tried again too soon")
		}
	})
}

// Webhooks of other programs may take long to answer.
func TestTheLeaderDoesNotWaitForAProbePod(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		l.podsIn(t, c, func(ctx context.Context, _ int) error {
			<-ctx.Done()
			return ctx.Err()
		})
		start := time.Now()
		for range 10 {
			l.judged(t)
			synctest.Wait()
		}
		if waited := time.Since(start); waited != 0 {
			t.Errorf("the leader waited for %v", waited)
		}
		<-time.After(probeTimeout)
		synctest.Wait()
		if got := l.judged(t); got.Reason != appsv1beta1.ReasonProbeFailed {
			t.Errorf("it says %+v", got)
		}
	})
}

func TestResultsOfSidecarSetsThatAreGoneAreForgotten(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		l.podsIn(t, c, func(context.Context, int) error { return nil })
		l.judged(t)
		synctest.Wait()
		if _, ok := l.probe.results[types.UID("set-1")]; !ok {
			t.Fatal("there is no result")
		}
		l.sets.(*fixtures.Snapshots).Swap()
		_, _ = l.pass(t.Context())
		if len(l.probe.results) != 0 {
			t.Errorf("left: %v", l.probe.results)
		}
	})
}

// whyRefused knows no Pod, so it returns only errors that every Pod would get.
func TestWhyRefusedReportsOnlyErrorsThatEveryPodGets(t *testing.T) {
	never := map[string]bool{
		"refused-hot-upgrade-whose-name-a-sidecar-has": true,
		"refused-hot-upgrade-whose-names-are-too-long": true,
		"refused-hot-upgrade-without-an-empty-image":   true,
		"refused-recorded-revision-that-is-not-there":  true,
	}
	for _, c := range fixtures.Cases(t) {
		t.Run(c.Name, func(t *testing.T) {
			catalog := c.Snapshot(t)
			var refused error
			for _, program := range catalog.Programs() {
				refused = errors.Join(refused, whyRefused(program, catalog.History(program.Name())))
			}
			if (refused != nil) != never[c.Name] {
				t.Errorf("said of a Pod that nothing is known of: %v", refused)
			}
		})
	}
}
