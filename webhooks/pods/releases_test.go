package pods_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/status"
	"github.com/sidecarset/operator/test/rounds"
	"github.com/sidecarset/operator/webhooks/pods"
	"github.com/sidecarset/operator/webhooks/server"
)

// version is SidecarSet log as it was stored at some time. Images are numbers.
type version struct {
	generation int64
	image      int
	status     appsv1beta1.SidecarSetStatus
}

// isReady reports whether the condition Ready says that the next Pod gets this generation.
func (v *version) isReady() bool {
	c := meta.FindStatusCondition(v.status.Conditions, appsv1beta1.ConditionReady)
	return c != nil && c.Status == "True" && c.ObservedGeneration == v.generation && v.status.ObservedGeneration == v.generation
}

// releases are an API server, a leader and replicas, whose watches are late. Each of them has a version, by its
// number in all.
type releases struct {
	*testing.T
	*rand.Rand
	late     int // how many versions a watch may be behind
	all      []version
	replicas [3]int
	// The leader: its cache, and the image that its plan is about; -1: it has no plan.
	leader, planned int
	available       [3]int // Pods, by image
	bad             int    // an image with which none is; -1: none
	released        int
	once            map[int]bool // the images that were stable

	names     [3]string
	snapshots map[string]*match.Snapshot
	handlers  [3]paths

	hold   func(rollout.Revisions, rollout.Evidence) bool
	noRead bool // a planted mistake
}

func imageName(i int) string { return fmt.Sprint("log:v", i+1) }

func newReleases(t *testing.T, seed int64, late int) *releases {
	r := &releases{T: t, Rand: rand.New(rand.NewSource(seed)), late: late, planned: -1, bad: -1, once: map[int]bool{}, snapshots: map[string]*match.Snapshot{}, hold: rollout.Hold}
	r.all = []version{{generation: 1}}
	for i := range r.names {
		r.names[i] = revisionOf(t, logOf(imageName(i))).Name
	}
	for i := range r.handlers {
		r.handlers[i] = newInjector(pods.Options{
			Snapshot: func() *match.Snapshot { return r.snapshot(r.all[r.replicas[i]]) }, Namespaces: &liveNamespaces{},
			Know: func(context.Context, []string) error {
				if !r.noRead {
					r.replicas[i] = len(r.all) - 1
				}
				return nil
			},
		})
	}
	return r
}

// snapshot is that of a replica that has a version.
func (r *releases) snapshot(v version) *match.Snapshot {
	key := fmt.Sprint(v.image, v.status.StableRevision)
	if r.snapshots[key] == nil {
		set := logOf(imageName(v.image))
		set["metadata"].(map[string]any)["annotations"].(map[string]any)[appsv1beta1.AnnotationNewPods] = appsv1beta1.StableNewPods
		set["status"] = map[string]any{"latestRevision": r.names[v.image], "stableRevision": v.status.StableRevision}
		r.snapshots[key] = storeOf(r, set)
		for i, name := range r.names {
			if name == v.status.StableRevision && i != v.image {
				r.snapshots[key] = holding(r.T, set, imageName(i))
			}
		}
	}
	return r.snapshots[key]
}

// see lets a watch see more.
func (r *releases) see(at *int) {
	*at = max(*at, len(r.all)-1-r.Intn(r.late+1))
}

// edit is one by a user: another image, which may be bad, or an earlier one again.
func (r *releases) edit() {
	v := r.all[len(r.all)-1]
	v.generation++
	v.image = (v.image + 1 + r.Intn(2)) % 3
	if r.available[v.image], r.bad = 0, -1; r.Intn(3) == 0 {
		r.bad = v.image
	}
	r.all = append(r.all, v)
}

// pass is one of the leader. It may be killed before it, before the write, or before it sees the write.
func (r *releases) pass() (breach string) {
	killed := r.Intn(12)
	if killed == 0 {
		r.leader, r.planned = len(r.all)-1, -1
	}
	r.see(&r.leader)
	v := r.all[r.leader]
	before := v.status
	revision := &status.Revision{Name: r.names[v.image], All: r.names[:]}
	if before.StableRevision != "" && before.StableRevision != revision.Name {
		revision.NewPods, revision.Held = before.StableRevision, true
	}
	o := status.Observation{Name: "log", Generation: v.generation, Revision: revision, Now: fixtures.Now, Hold: true, Readiness: &status.Readiness{Ready: true, Reason: appsv1beta1.ReasonInjecting}}
	for _, at := range r.replicas {
		if r.all[at].generation < v.generation {
			o.Readiness = &status.Readiness{Reason: appsv1beta1.ReasonPending}
		}
	}
	if r.planned >= 0 {
		o.Plan = &rollout.Plan{Evidence: rollout.Evidence{Available: r.available[r.planned], Pending: 5}}
		o.Hold = r.hold(rollout.Revisions{Latest: revision.Name, Planned: r.names[r.planned], Stable: before.StableRevision, Recorded: true}, o.Plan.Evidence)
	}
	if r.Intn(3) > 0 {
		r.planned = v.image
	}
	next := status.Next(before, o)
	if killed == 1 || r.leader != len(r.all)-1 || status.Equal(before, next) { // a conflict: its cache is behind
		return ""
	}
	if next.StableRevision == revision.Name && before.StableRevision != revision.Name {
		r.released++
		r.once[v.image] = true
		if before.StableRevision != "" && r.available[v.image] < 3 {
			breach = fmt.Sprintf("%s is released with %d Pods", imageName(v.image), r.available[v.image])
		}
	}
	v.status = next
	r.all = append(r.all, v)
	if killed == 2 {
		r.leader, r.planned = len(r.all)-1, -1
	}
	return breach
}

// create creates a Pod. While Ready is True, it gets the current image, and else that or one that was stable.
func (r *releases) create() (breach string) {
	now, i := r.all[len(r.all)-1], r.Intn(len(r.replicas))
	got := imageOf(r.T, r.handlers[i].static, webReview(r.T, unchanged))
	if got == imageName(now.image) {
		return ""
	}
	if now.isReady() {
		return fmt.Sprintf("Ready is True for %s, and a Pod got %s", imageName(now.image), got)
	}
	for image := range r.once {
		if got == imageName(image) {
			return ""
		}
	}
	return fmt.Sprintf("the current image is %s, and a Pod got %s, which was never stable", imageName(now.image), got)
}

// run runs until so many revisions were released, and returns the first breach.
func (r *releases) run(releases int) (breach string) {
	for r.released < releases && breach == "" {
		switch n := r.Intn(20); {
		case n == 0 && r.once[0]:
			r.edit()
		case n < 6:
			breach = r.create()
		case n < 9:
			r.see(&r.replicas[r.Intn(len(r.replicas))])
		case n < 12:
			if image := r.all[len(r.all)-1].image; image != r.bad {
				r.available[image]++
			}
		default:
			breach = r.pass()
		}
	}
	return breach
}

// The condition Ready is exact, and only enough available Pods release a revision, over many releases: with watches
// that are late, and leaders that are killed at each step. The decision, the status and the admission are the real
// ones.
func TestReadyIsExactOverManyReleases(t *testing.T) {
	for _, late := range []int{0, 1, 5} {
		r := newReleases(t, int64(late), late)
		if breach := r.run(rounds.Of(1000, 40)); breach != "" {
			t.Errorf("watches are %d versions late: after %d releases, %s", late, r.released, breach)
		}
	}
	for mistake, plant := range map[string]func(*releases){
		"no live read": func(r *releases) { r.noRead = true },
		"a plan of another content": func(r *releases) {
			r.hold = func(v rollout.Revisions, e rollout.Evidence) bool {
				v.Planned = v.Latest
				return rollout.Hold(v, e)
			}
		},
		"one available Pod is enough": func(r *releases) {
			r.hold = func(v rollout.Revisions, e rollout.Evidence) bool { return rollout.Hold(v, e) && e.Available == 0 }
		},
	} {
		r := newReleases(t, 1, 5)
		plant(r)
		if breach := r.run(40); breach == "" {
			t.Errorf("the mistake %q is not found", mistake)
		}
	}
}

// BenchmarkHeld prints what an admission costs with sidecarset.io/new-pods: Stable, as ratios to one without the
// annotation: while the revision is stable, and while it is held back, without the read of the SidecarSet from
// the API server. "plain" is a SidecarSet without a stable revision to that without the annotation: 1, as a Pod
// without the annotation pays nothing for it. The calls take turns.
func BenchmarkHeld(b *testing.B) {
	none := logOf("log:v2")
	names := []string{"without", "plain", "stable", "held"}
	snapshots := []*match.Snapshot{
		storeOf(b, edited(b, "log:v2", "log:v1", "")), storeOf(b, none), storeOf(b, edited(b, "log:v2", "log:v2", "Stable")), holding(b, edited(b, "log:v2", "log:v1", "Stable"), "log:v1"),
	}
	body := webReview(b, unchanged)
	best, handlers := make([]time.Duration, len(names)), make([]server.Handler, len(names))
	for i, snapshot := range snapshots {
		handlers[i] = newInjector(pods.Options{Snapshot: func() *match.Snapshot { return snapshot }, Namespaces: &liveNamespaces{}}).static
	}
	for b.Loop() {
		for i, handler := range handlers {
			begin := time.Now()
			for range 20 {
				fixtures.Send(b, handler, bytes.NewReader(body))
			}
			if took := time.Since(begin); best[i] == 0 || took < best[i] {
				best[i] = took
			}
		}
	}
	for i, name := range names[1:] {
		b.ReportMetric(float64(best[i+1])/float64(best[0]), name)
	}
	b.ReportMetric(float64(best[0].Nanoseconds())/20, "ns-without")
}
