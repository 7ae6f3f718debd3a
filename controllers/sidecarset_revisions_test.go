package controllers

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/revision"
	"github.com/sidecarset/operator/internal/tracker"
)

// keeper keeps revisions in the API server, and reads them from a cache that can be kept behind.
func (a *api) keeper() *revisionKeeper {
	return &revisionKeeper{cached: laggingReader{a}, live: a, writer: a, namespace: "system"}
}

type laggingReader struct{ *api }

func (r laggingReader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if r.behind {
		return nil
	}
	return r.api.List(ctx, list, opts...)
}

func (a *api) stored(t *testing.T) []appsv1.ControllerRevision {
	t.Helper()
	var list appsv1.ControllerRevisionList
	if err := a.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// logCompiled is SidecarSet "log" with one container of that image.
func logCompiled(image string) *inject.Compiled {
	set := fixtures.LogSet(1)
	set.Spec.Containers[0].Image = image
	return &inject.Compiled{Set: set, Hash: "h1", HashWithoutImage: "hw"}
}

// specOf is the spec of logCompiled(image).
func specOf(image string) map[string]any {
	return map[string]any{"containers": []any{map[string]any{"name": "log", "image": image}}}
}

// recorded is the revision of logCompiled(image), as number.
func recorded(t *testing.T, image string, number int64, collisions int32) *appsv1.ControllerRevision {
	t.Helper()
	compiled := logCompiled(image)
	data, err := revision.Data(specOf(image))
	if err != nil {
		t.Fatal(err)
	}
	stored := revision.New(ownerOf(compiled), "system", data, collisions, number)
	stored.UID = types.UID(stored.Name)
	return stored
}

func TestKeepAdoptsWhatTheCacheHasNotSeen(t *testing.T) {
	own := recorded(t, "log:1", 1, 0)
	api := newAPI(t, own)
	api.behind = true
	got, _, err := api.keeper().keep(t.Context(), logCompiled("log:1"), specOf("log:1"), 0)
	if err != nil || got.Name != own.Name || got.CollisionCount != 0 || len(api.stored(t)) != 1 {
		t.Errorf("%v, %v; %d revisions", got, err, len(api.stored(t)))
	}
}

func TestKeepAvoidsTheRevisionOfADeletedNamesake(t *testing.T) {
	foreign := recorded(t, "log:1", 4, 0)
	foreign.OwnerReferences[0].UID = "set-0"
	api := newAPI(t, foreign)
	got, _, err := api.keeper().keep(t.Context(), logCompiled("log:1"), specOf("log:1"), 0)
	want := recorded(t, "log:1", 1, 1)
	if err != nil || got.Name != want.Name || got.CollisionCount != 1 {
		t.Fatalf("%v, %v; want %s", got, err, want.Name)
	}
	i := slices.IndexFunc(api.stored(t), func(r appsv1.ControllerRevision) bool { return r.Name == want.Name })
	if i < 0 || api.stored(t)[i].Revision != 1 {
		t.Errorf("stored: %v", api.stored(t))
	}
	// From then on it is found by its data, whatever the count says.
	got, _, err = api.keeper().keep(t.Context(), logCompiled("log:1"), specOf("log:1"), 0)
	if err != nil || got.Name != want.Name || len(api.stored(t)) != 2 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestKeepGivesUpAfterTooManyCollisions(t *testing.T) {
	var taken []client.Object
	for i := range int32(maxCollisions) {
		foreign := recorded(t, "log:1", 1, i)
		foreign.OwnerReferences[0].UID = "set-0"
		taken = append(taken, foreign)
	}
	if got, _, err := newAPI(t, taken...).keeper().keep(t.Context(), logCompiled("log:1"), specOf("log:1"), 0); err == nil {
		t.Errorf("recorded as %v", got)
	}
}

// due is how many Pods the executor was given since the last call, and for which image. They are not
// written.
func (r *rig) due(t *testing.T) (pods int, image string) {
	t.Helper()
	r.mu.Lock()
	items := r.begun
	r.begun = nil
	r.mu.Unlock()
	for _, item := range items {
		image = item.Compiled.Set.Spec.Containers[0].Image
		if err := r.pods.ask(t.Context(), func(tr *tracker.Tracker) { tr.Done(item, tracker.Result{}) }); err != nil {
			t.Fatal(err)
		}
	}
	return len(items), image
}

// No Pod is given a revision that is not recorded, and the status says why.
func TestNoPodIsUpdatedWhileItsRevisionCannotBeRecorded(t *testing.T) {
	control(t, 1, func(t *testing.T, r *rig) {
		r.feed(t, webPod(1), webPod(2))
		r.pass(time.Minute)
		wantReasons(t, r.written(t), "Complete", "AsExpected")

		r.api.failWith(errors.New("exceeded quota"))
		r.storeSet(t, 2, "2", "Latest")
		r.pass(time.Millisecond)
		wantReasons(t, r.written(t), "Complete", "AsExpected")
		r.pass(time.Hour)
		if n, image := r.due(t); n != 0 {
			t.Errorf("%d Pods are due for %s while its revision is not recorded", n, image)
		}
		s := r.written(t)
		wantReasons(t, s, "Complete", "RevisionNotRecorded")
		if c := meta.FindStatusCondition(s.Conditions, appsv1beta1.ConditionDegraded); !strings.Contains(c.Message, "records generation 2 yet") || !strings.Contains(c.Message, "exceeded quota") {
			t.Errorf("Degraded is %+v", c)
		}
		if s.ObservedGeneration != 1 || s.UpdatedPods != 2 {
			t.Errorf("the status is %+v, want that of generation 1", s)
		}

		r.api.failWith(nil)
		r.pass(lastRetry)
		if n, image := r.due(t); n != 1 || image != "log:2" {
			t.Errorf("%d Pods are due for %s when the revision is recorded, want 1", n, image)
		}
		r.pass(writeInterval)
		wantReasons(t, r.written(t), "RollingOut", "AsExpected")
		if s := r.written(t); s.ObservedGeneration != 2 || s.UpdatedPods != 0 {
			t.Errorf("the status is %+v", s)
		}
	})
}

// While Pods change, the status is written seldom. The next rollout does not wait for that.
func TestARolloutBeginsAtOnce(t *testing.T) {
	control(t, 1, func(t *testing.T, r *rig) {
		r.feed(t, webPod(1), webPod(2))
		r.pass(time.Minute)
		r.feed(t, notReady(webPod(2)))
		r.pass(writeInterval)
		r.feed(t, webPod(2))
		r.pass(time.Millisecond)
		r.storeSet(t, 2, "2", "Latest") // the cache first
		r.pass(time.Millisecond)
		if n, _ := r.due(t); n != 1 {
			t.Errorf("%d Pods are due, want 1", n)
		}
	})
}

// If a generation is observed already, a failure to keep the revision does not stop the
// counters.
func TestCountersFollowWhileRevisionsFail(t *testing.T) {
	control(t, 1, func(t *testing.T, r *rig) {
		r.feed(t)
		r.pass(writeInterval)
		if err := r.api.DeleteAllOf(t.Context(), &appsv1.ControllerRevision{}, client.InNamespace("system")); err != nil {
			t.Fatal(err)
		}
		r.api.failWith(errors.New("etcd is full"))
		r.feed(t, webPod(1))
		r.pass(writeInterval)
		if s := r.written(t); s.MatchedPods != 1 {
			t.Errorf("status %+v", s)
		}
	})
}

func TestTruncateReportsWhatItCouldNotDelete(t *testing.T) {
	api := newAPI(t, recorded(t, "log:1", 1, 0), recorded(t, "log:2", 2, 0))
	compiled := logCompiled("log:2")
	compiled.Set.Spec.RevisionHistoryLimit = new(int32(1))
	kind, refused := appsv1.Resource("controllerrevisions"), errors.New("refused")
	api.failWith(refused)
	_, history, err := api.keeper().keep(t.Context(), compiled, specOf("log:2"), 0)
	if err != nil {
		t.Fatal("the current revision is written although it stays as it is: ", err)
	}
	if _, _, err := api.keeper().keep(t.Context(), logCompiled("log:1"), specOf("log:1"), 0); !errors.Is(err, refused) {
		t.Errorf("a way back that could not be written: %v", err)
	}
	for fails, want := range map[error]error{
		refused: refused, apierrors.NewNotFound(kind, "x"): nil, apierrors.NewConflict(kind, "x", errors.New("another UID")): nil,
	} {
		api.failWith(fails)
		if err := api.keeper().truncate(t.Context(), compiled, history, "", nil); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
}

// It spares the revision that new Pods get, too.
func TestTruncateSparesWhatPodsRun(t *testing.T) {
	var all []client.Object
	var names []string
	for i, image := range []string{"log:1", "log:2", "log:3"} {
		r := recorded(t, image, int64(i+1), 0)
		all, names = append(all, r), append(names, r.Name)
	}
	api := newAPI(t, all...)
	compiled := logCompiled("log:4")
	compiled.Set.Spec.RevisionHistoryLimit = new(int32(1))
	got, history, err := api.keeper().keep(t.Context(), compiled, specOf("log:4"), 0)
	if err != nil {
		t.Fatalf("keep: %v", err)
	}
	if err := api.keeper().truncate(t.Context(), compiled, history, names[2], map[podstate.Name]tracker.RevisionCount{podstate.MakeName(names[1]): {Pods: 1}}); err != nil {
		t.Fatalf("truncate: %v", err)
	}
	var left []string
	for _, r := range api.stored(t) {
		left = append(left, r.Name)
		if !metav1.IsControlledBy(&r, &metav1.ObjectMeta{UID: compiled.Set.UID}) || r.Labels[appsv1beta1.LabelSidecarSetName] != "log" {
			t.Errorf("revision %+v", r.ObjectMeta)
		}
	}
	want := []string{names[1], names[2], got.Name}
	slices.Sort(left)
	slices.Sort(want)
	if diff := cmp.Diff(want, left); diff != "" {
		t.Errorf("revisions (-want +got):\n%s", diff)
	}
}
