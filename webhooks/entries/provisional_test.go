package entries

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/test/rounds"
)

// reviewed returns a SidecarSet as in an AdmissionReview. The replica cannot tell whether it
// will be stored.
func reviewed(name string) *appsv1beta1.SidecarSet {
	set := fixtures.LogSet(1)
	set.Name = name
	set.Annotations = map[string]string{appsv1beta1.AnnotationTimeoutSeconds: "30"}
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	return set
}

// review makes a replica widen for these SidecarSets at the same time. It returns the number
// of those for which there was room.
func (l *leader) review(t *testing.T, names ...string) (served int) {
	t.Helper()
	var batch []*widening
	for _, name := range names {
		entry, err := entryplan.Of(reviewed(name))
		if err != nil {
			t.Fatal(err)
		}
		batch = append(batch, &widening{entry: entry, done: make(chan error, 1)})
	}
	l.webhooks.widen(t.Context(), batch)
	for _, one := range batch {
		if err := <-one.done; err == nil {
			served++
		}
	}
	return served
}

func ghosts(from, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint("ghost-", from+i))
	}
	return names
}

// standing returns the number of provisional entries, and the number of all entries by failure
// policy.
func standing(c *cluster) (provisional int, policies map[admissionregistrationv1.FailurePolicyType]int) {
	policies = map[admissionregistrationv1.FailurePolicyType]int{}
	for _, configuration := range c.configurations {
		for _, w := range configuration.Webhooks {
			if !strings.HasSuffix(w.Name, ".pods.sidecarset.io") {
				continue
			}
			policies[*w.FailurePolicy]++
			if configuration.Name == entryplan.ConfigurationName(entryplan.Provisional) {
				provisional++
			}
		}
	}
	return provisional, policies
}

// For an hour (ten minutes with -short), a stranger sends as many reviews of SidecarSets that are never stored as there
// is room for.
func TestStrangersReviewsLeaveLittleBehind(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		l.judged(t)
		forged, seconds := 0, 0.0
		const step = 100 * time.Millisecond
		var worst float64
		minutes := make([]float64, rounds.Of(60, 10))
		for i := range 600 * len(minutes) {
			l.review(t, ghosts(forged, 3)...)
			forged += 3
			provisional, policies := standing(c)
			if provisional > entryplan.MaxProvisional || policies[admissionregistrationv1.Fail] > 1 {
				t.Fatalf("%d provisional entries, %v", provisional, policies)
			}
			minutes[i/600] += float64(provisional) * step.Seconds()
			seconds += float64(provisional) * step.Seconds()
			<-time.After(step)
			if got := l.judged(t); !got.Ready {
				t.Fatalf("the SidecarSet that there is: %+v", got)
			}
		}
		for _, m := range minutes {
			worst = max(worst, m)
		}
		last := minutes[len(minutes)-1]
		t.Logf("entry-seconds: %.1f in the worst minute, %.1f in the last", worst, last)
		// A call takes some 2.7 ms; docs/design/0005 has the arithmetic.
		if worst > 22 || last > 5 {
			t.Errorf("entry-seconds: %.1f in the worst minute, %.1f in the last", worst, last)
		}
		<-time.After(2 * time.Second)
		l.judged(t)
		if provisional, policies := standing(c); provisional != 0 || policies[admissionregistrationv1.Fail] != 1 || policies[admissionregistrationv1.Ignore] != 0 {
			t.Errorf("%d provisional entries are left, %v", provisional, policies)
		}
		for range entryplan.MaxProvisional {
			<-time.After(20 * time.Second)
			l.judged(t)
		}
		if got := l.review(t, ghosts(forged, 40)...); got != entryplan.MaxProvisional {
			t.Errorf("afterwards there is room for %d", got)
		}
	})
}

// Many SidecarSets at once find room as fast as the leader sees them stored.
func TestStoredSidecarSetsTakeNoRoom(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		l.judged(t)
		stored := []*appsv1beta1.SidecarSet{fixtures.LogSet(1)}
		for i := range rounds.Of(300, 30) {
			name := fmt.Sprint("set-", i)
			if l.review(t, name) != 1 {
				t.Fatalf("there is no room for %s", name)
			}
			if provisional, _ := standing(c); provisional != 1 {
				t.Fatalf("%d provisional entries for %s", provisional, name)
			}
			stored = append(stored, reviewed(name))
			l.sets.(*fixtures.Snapshots).Swap(stored...)
			<-time.After(50 * time.Millisecond)
			l.judged(t)
			if provisional, policies := standing(c); provisional != 0 || policies[admissionregistrationv1.Fail] != i+2 {
				t.Fatalf("after %s was stored: %d provisional entries, %v", name, provisional, policies)
			}
		}
		if got := l.review(t, ghosts(0, 40)...); got != entryplan.MaxProvisional {
			t.Errorf("afterwards there is room for %d", got)
		}
	})
}

// The snapshot may be behind: the SidecarSet may be stored although the snapshot lacks it.
func TestAProvisionalEntryWaitsForASnapshotThatIsBehind(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		l.judged(t)
		l.review(t, "late")
		c.behind = func() error { return errors.New("SidecarSet late is not known yet") }
		wait := func(want int, when string) {
			t.Helper()
			<-time.After(2 * time.Second)
			l.judged(t)
			if provisional, _ := standing(c); provisional != want {
				t.Fatalf("%s: %d provisional entries, want %d", when, provisional, want)
			}
		}
		wait(1, "while it is stored and not known")
		c.behind = func() error { return nil }
		wait(0, "when it is known, and of no use")
	})
}

// SidecarSets change all the time. Their authors must not keep the leader from removing
// entries.
func TestChangesOfNoEntryDelayNoRemoval(t *testing.T) {
	annotated := func(key, value string) *appsv1beta1.SidecarSet {
		set := fixtures.LogSet(1)
		set.Annotations[key] = value
		return set
	}
	for name, tc := range map[string]struct {
		meanwhile []*appsv1beta1.SidecarSet
		want      int
	}{
		"nothing changes":         {[]*appsv1beta1.SidecarSet{fixtures.LogSet(1)}, 0},
		"an annotation":           {[]*appsv1beta1.SidecarSet{annotated("example.com/a", "b")}, 0},
		"a SidecarSet is deleted": {nil, 0},
		"the failure policy":      {[]*appsv1beta1.SidecarSet{annotated(appsv1beta1.AnnotationFailurePolicy, "Ignore")}, 1},
		"the generation":          {[]*appsv1beta1.SidecarSet{fixtures.LogSet(2)}, 1},
		"a SidecarSet is new":     {[]*appsv1beta1.SidecarSet{fixtures.LogSet(1), reviewed("late")}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			leading(t, func(t *testing.T, l *leader, c *cluster) {
				l.judged(t)
				l.review(t, "late")
				l.judged(t)
				c.behind = func() error {
					l.sets.(*fixtures.Snapshots).Swap(tc.meanwhile...)
					return nil
				}
				<-time.After(2 * time.Second)
				_, _ = l.pass(t.Context())
				if provisional, _ := standing(c); provisional != tc.want {
					t.Errorf("%d provisional entries, want %d", provisional, tc.want)
				}
			})
		})
	}
}

// A review writes the object for provisional entries after the leader has planned to remove
// an entry from it. The leader still removes the entry in this pass, and writes no other
// object again.
func TestAReviewInBetweenKeepsNoProvisionalEntry(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		l.judged(t)
		l.review(t, "stored")
		l.sets.(*fixtures.Snapshots).Swap(reviewed("stored"), fixtures.LogSet(1))
		before := c.writes
		c.meddle = func(*admissionregistrationv1.MutatingWebhookConfiguration) {
			c.meddle = nil
			l.review(t, "another")
		}
		l.judged(t)
		if writes := c.writes - before; writes != 3 {
			t.Errorf("%d writes, want one of the review, one of the entry and one that removes the provisional entry", writes)
		}
		if provisional, policies := standing(c); provisional != 1 || policies[admissionregistrationv1.Fail] != 2 {
			t.Errorf("%d provisional entries, %v; want the one of the review", provisional, policies)
		}
	})
}

// Entries that are due one after another leave the fresh path together. No pass writes many of
// their objects, because users who wait for Ready would wait for these writes, too.
func TestEntriesSettleInBatches(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		stored := []*appsv1beta1.SidecarSet{fixtures.LogSet(1)}
		for i := range 8 {
			stored = append(stored, reviewed(fmt.Sprint("later-", i)))
			l.sets.(*fixtures.Snapshots).Swap(stored...)
			l.judged(t)
			<-time.After(time.Second)
		}
		batches, begin, last := 0, time.Now(), time.Time{}
		for time.Since(begin) < 2*time.Minute+30*time.Second {
			before := c.writes
			l.judged(t)
			if c.writes-before > deferrableTogether {
				t.Errorf("a pass wrote %d objects", c.writes-before)
			}
			if c.writes > before {
				if time.Since(last) > time.Second {
					batches++
				}
				last = time.Now()
			}
			<-time.After(100 * time.Millisecond)
		}
		for _, configuration := range c.configurations {
			for _, w := range configuration.Webhooks {
				if path := w.ClientConfig.Service.Path; strings.HasSuffix(w.Name, ".pods.sidecarset.io") && *path != entryplan.PathPods {
					t.Errorf("%s is on %s", w.Name, *path)
				}
			}
		}
		if batches > 2 {
			t.Errorf("objects were written in %d batches, want 2 at most", batches)
		}
	})
}

// After a SidecarSet is deleted, a stranger's reviews keep its entry for a bounded time only.
func TestReviewsDoNotKeepAnOrphanForEver(t *testing.T) {
	leading(t, func(t *testing.T, l *leader, c *cluster) {
		l.sets.(*fixtures.Snapshots).Swap(reviewed("gone"), fixtures.LogSet(1))
		l.judged(t)
		l.sets.(*fixtures.Snapshots).Swap(fixtures.LogSet(1))
		const windows = 2 * (90*time.Second + trusted)
		for range int((windows+windows/batchesInWindow)/time.Second) + 3 {
			l.review(t, "gone")
			l.judged(t)
			<-time.After(time.Second)
		}
		l.judged(t)
		if _, policies := standing(c); policies[admissionregistrationv1.Fail] != 1 {
			t.Errorf("after two windows there are %v", policies)
		}
	})
}

func TestReviewsShareFewWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace, writes := newWidenPace(), 0
		for end := time.Now().Add(time.Minute); time.Now().Before(end); {
			if err := pace.WaitN(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			pace.ReserveN(time.Now(), 3)
			writes += 3
			<-time.After(time.Millisecond)
		}
		if most := widenBurst + int(time.Minute/widenInterval); writes > most+10 || writes < most-10 {
			t.Errorf("%d writes in a minute, want about %d", writes, most)
		}
	})
}
