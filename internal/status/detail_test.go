package status_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/recreate"
	"github.com/sidecarset/operator/internal/status"
	"github.com/sidecarset/operator/internal/tally"
	"github.com/sidecarset/operator/test/rounds"
)

var (
	blockedReasons = []inplace.Reason{
		inplace.ImmutableFieldChanged, inplace.RevisionUnknown, inplace.RunToCompletion, inplace.NodeTooOld, inplace.NodeNotReady,
		inplace.Refused, inplace.ResourcesHeldElsewhere, inplace.ResizeDeferred, inplace.ResizeInfeasible, inplace.ResizeFailed, inplace.ResizeTimedOut, inplace.ResizeUnsupported, inplace.RecordUnreadable,
		inplace.RestartRules, inplace.MirrorPod, inplace.WriteFailed, inplace.UpdateImpossible, inplace.ResizeRestarts,
		recreate.NoController, recreate.ControlledByJob, recreate.EvictionForbidden, recreate.ReplacementNotInjected, recreate.ReplacementOutdated,
		recreate.NotInjected, recreate.DisruptionBudget, recreate.EvictionRefused,
	}
	uninjectedReasons = []string{
		appsv1beta1.ReasonOlderThanSidecarSet, appsv1beta1.ReasonMissedAtCreation, appsv1beta1.ReasonSidecarsMissing, appsv1beta1.ReasonRecordRemoved,
	}
)

func TestNextNamesPodsAndRevisions(t *testing.T) {
	names := []string{"a/1", "a/2", "a/3", "b/4", "b/5", "b/6"}
	got := status.Next(appsv1beta1.SidecarSetStatus{}, status.Observation{
		Now: start,
		Uninjected: []appsv1beta1.SidecarSetPodGroup{
			{Reason: appsv1beta1.ReasonSidecarsMissing}, {Reason: appsv1beta1.ReasonOlderThanSidecarSet, Pods: 6, First: names},
		},
		Blocked: []appsv1beta1.SidecarSetPodGroup{
			{Reason: "Refused", Pods: 1, First: names[:1], Message: "forbidden"}, {Reason: "NodeTooOld", Pods: 5, First: names[:5]},
		},
		Revision:  &status.Revision{},
		Revisions: []appsv1beta1.SidecarSetRevisionPods{{Name: "log-b", Pods: 1, ReadyPods: 1}, {Pods: 11, ReadyPods: 9}, {Name: "log-a", Pods: 7, ReadyPods: 3}, {Name: "log-c"}},
	})
	want := appsv1beta1.SidecarSetStatus{
		Uninjected: []appsv1beta1.SidecarSetPodGroup{{Reason: appsv1beta1.ReasonOlderThanSidecarSet, Pods: 6, First: names[:5]}},
		BlockedPods: []appsv1beta1.SidecarSetPodGroup{
			{Reason: "NodeTooOld", Pods: 5, First: names[:3]}, {Reason: "Refused", Pods: 1, First: names[:1], Message: "forbidden"},
		},
		Revisions: []appsv1beta1.SidecarSetRevisionPods{{Name: "log-a", Pods: 7, ReadyPods: 3}, {Name: "log-b", Pods: 1, ReadyPods: 1}, {Pods: 11, ReadyPods: 9}},
	}
	got.Conditions, got.CollisionCount = nil, nil
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
}

// Users write the names of Pods, what Pods record, and the messages with which
// webhooks refuse a write. Whatever they write, and however many Pods there are,
// the status fits into 4 KB, adds up, and is the same for the same Pods.
func TestAStatusIsSmall(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	largest := 0
	for range rounds.Of(3000, 300) {
		o := hostile(r)
		next := status.Next(appsv1beta1.SidecarSetStatus{}, o)
		text, err := json.Marshal(next)
		if err != nil {
			t.Fatal(err)
		}
		if largest = max(largest, len(text)); len(text) > 4096 || !utf8.Valid(text) {
			t.Fatalf("the status has %d bytes, valid %v:\n%s", len(text), utf8.Valid(text), text)
		}
		var pods, before int32
		for _, n := range o.Revisions {
			before += n.Pods
		}
		for _, n := range next.Revisions {
			pods += n.Pods
		}
		if pods != before {
			t.Fatalf("%d Pods by revision, want %d", pods, before)
		}
		for _, list := range [][]appsv1beta1.SidecarSetPodGroup{o.Blocked, o.Uninjected} {
			r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		}
		r.Shuffle(len(o.Revisions), func(i, j int) { o.Revisions[i], o.Revisions[j] = o.Revisions[j], o.Revisions[i] })
		again := status.Next(appsv1beta1.SidecarSetStatus{}, o)
		again.Conditions = next.Conditions // their messages have the given order
		if diff := cmp.Diff(next, again); diff != "" {
			t.Fatalf("in another order (-first +second):\n%s", diff)
		}
	}
	t.Logf("the largest status has %d bytes", largest)
	if largest < 2048 {
		t.Error("no status was large: the test has lost its sense")
	}
}

// hostile returns an observation with as much text as its sources can have.
func hostile(r *rand.Rand) status.Observation {
	alphabets := []string{"a", "abc-", "<>&", "\u2028", "ü", "\x00\x1f", "\xff", `"\`}
	text := func(longest int) string {
		alphabet := []rune(alphabets[r.IntN(len(alphabets))])
		var b strings.Builder
		for range r.IntN(longest + 1) {
			b.WriteRune(alphabet[r.IntN(len(alphabet))])
		}
		return b.String()
	}
	many := func() int32 { return []int32{1, 12, 100_000_000}[r.IntN(3)] }
	group := func(reason string, names int) appsv1beta1.SidecarSetPodGroup {
		g := appsv1beta1.SidecarSetPodGroup{Reason: reason, Pods: many(), Message: text(3000)}
		for i := range names {
			g.First = append(g.First, fmt.Sprintf("%s/%s%d", strings.Repeat("n", 1+r.IntN(63)), text(250), i))
		}
		return g
	}
	o := status.Observation{
		Generation: 1 << 40, Now: start,
		Counters:  tally.Counters{Matched: 1e9, Updated: 1e8, Ready: 1e8, UpdatedReady: 1e8, Uninjected: 1e8},
		Revision:  &status.Revision{Name: strings.Repeat("r", 253), CollisionCount: 1e9},
		Readiness: &status.Readiness{Reason: appsv1beta1.ReasonCertificateNotTrusted, Message: strings.Repeat("m", 300)},
		Rollout: &status.Rollout{Waiting: 1e8, InFlight: 3, FirstBatch: r.IntN(2) == 0, Moved: start.Add(-11 * 60e9),
			Failing: []appsv1beta1.SidecarSetPodGroup{group("CreateContainerConfigError", 2), group(text(100), 1)}, Stopped: text(1000)},
	}
	for _, reason := range blockedReasons[:r.IntN(len(blockedReasons)+1)] {
		o.Blocked = append(o.Blocked, group(string(reason), 5))
	}
	for _, reason := range uninjectedReasons[:r.IntN(len(uninjectedReasons)+1)] {
		o.Uninjected = append(o.Uninjected, group(reason, 5))
	}
	for i := range r.IntN(40) {
		o.Revisions = append(o.Revisions, appsv1beta1.SidecarSetRevisionPods{Name: fmt.Sprintf("%s%d", strings.Repeat("r", r.IntN(240)), i), Pods: many(), ReadyPods: 1})
	}
	return o
}

func TestALongRevisionNameIsCutInTheMiddle(t *testing.T) {
	name := "payments-" + strings.Repeat("x", 200) + "-6f84bc646f"
	got := status.Next(appsv1beta1.SidecarSetStatus{}, status.Observation{
		Now: start, Revision: &status.Revision{}, Revisions: []appsv1beta1.SidecarSetRevisionPods{{Name: name, Pods: 1}},
	}).Revisions
	if len(got) != 1 || len(got[0].Name) > 127 || !strings.HasPrefix(got[0].Name, "payments-") || !strings.HasSuffix(got[0].Name, "-6f84bc646f") {
		t.Errorf("revisions are %v", got)
	}
	if slices.Contains([]rune(got[0].Name), utf8.RuneError) {
		t.Errorf("%q has a broken character", got[0].Name)
	}
}

func TestPodsByRevision(t *testing.T) {
	recorded := map[podstate.Name]tally.RevisionCount{
		podstate.MakeName("log-1"): {Pods: 3, Ready: 2}, podstate.MakeName("made up"): {Pods: 1, Ready: 1},
	}
	got := status.ByRevision([]string{"log-2", "log-1"}, recorded, tally.Counters{Matched: 7, Ready: 5})
	want := []appsv1beta1.SidecarSetRevisionPods{{Name: "log-2"}, {Name: "log-1", Pods: 3, ReadyPods: 2}, {Pods: 4, ReadyPods: 3}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Pods by revision (-want +got):\n%s", diff)
	}
}

// If a revision cannot be recorded, the status keeps what it says about revisions.
func TestStatusKeepsRevisionsIfNoneCanBeRecorded(t *testing.T) {
	before := appsv1beta1.SidecarSetStatus{Revisions: []appsv1beta1.SidecarSetRevisionPods{{Name: "log-1", Pods: 3, ReadyPods: 2}, {Pods: 1}}}
	after := status.Next(before, status.Observation{Now: start, Revisions: []appsv1beta1.SidecarSetRevisionPods{{Pods: 9}}})
	if diff := cmp.Diff(before.Revisions, after.Revisions); diff != "" {
		t.Errorf("revisions (-before +after):\n%s", diff)
	}
}

// Whatever a message consists of, the part that is shown is valid and as JSON no longer than
// allowed. A message that fits is shown as it is.
func FuzzMessagesAreCut(f *testing.F) {
	for _, text := range []string{"", "a", strings.Repeat("<", 50), strings.Repeat("ü", 200), "\xff\xfe", strings.Repeat("x", 199) + "ü", "\u2028\x00\"\\", strings.Repeat("\f\b\t", 33)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		group := appsv1beta1.SidecarSetPodGroup{Reason: "Refused", Pods: 1, Message: text}
		got := status.Next(appsv1beta1.SidecarSetStatus{}, status.Observation{Now: start, Blocked: []appsv1beta1.SidecarSetPodGroup{group}}).BlockedPods[0].Message
		asJSON, err := json.Marshal(got)
		if err != nil || len(asJSON) > 200+len(`""`) || !utf8.ValidString(got) {
			t.Errorf("%q is shown as %q, %d bytes, error %v", text, got, len(asJSON), err)
		}
		if whole, _ := json.Marshal(text); len(whole) <= 200 && utf8.ValidString(text) && got != text {
			t.Errorf("%q fits, and is shown as %q", text, got)
		}
	})
}
