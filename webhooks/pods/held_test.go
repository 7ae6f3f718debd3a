package pods_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/revision"
	"github.com/sidecarset/operator/webhooks/pods"
	"github.com/sidecarset/operator/webhooks/server"
)

// revisionOf is the ControllerRevision that records a SidecarSet.
func revisionOf(t testing.TB, set map[string]any) *appsv1.ControllerRevision {
	t.Helper()
	data, err := revision.Data(set["spec"].(map[string]any))
	if err != nil {
		t.Fatal(err)
	}
	compiled := fixtures.Compiled(t, set)
	return revision.New(revision.Owner{Name: compiled.Name(), Hash: compiled.Hash, HashWithoutImage: compiled.HashWithoutImage}, "system", data, 0, 1)
}

// logOf is SidecarSet log with an image.
func logOf(image string) map[string]any {
	return fixtures.SidecarSet("log").Select("app", "web").Container("log", image).Map()
}

// edited is SidecarSet log with an image, whose stable revision is that of another one.
func edited(t testing.TB, image, stable, newPods string) map[string]any {
	t.Helper()
	set := logOf(image)
	if newPods != "" {
		set["metadata"].(map[string]any)["annotations"].(map[string]any)[appsv1beta1.AnnotationNewPods] = newPods
	}
	set["status"] = map[string]any{"latestRevision": revisionOf(t, set).Name, "stableRevision": revisionOf(t, logOf(stable)).Name}
	return set
}

// holding is a snapshot of SidecarSets log, with the revision of an image.
func holding(t testing.TB, set map[string]any, image string) *match.Snapshot {
	t.Helper()
	recorded, err := inject.CompileRevision(fixtures.Compiled(t, set), revisionOf(t, logOf(image)))
	if err != nil {
		t.Fatal(err)
	}
	return storeOf(t, set).WithHistory(map[string]*inject.Compiled{"log": recorded})
}

// imageOf returns the image of log that a new Pod gets.
func imageOf(t *testing.T, handler server.Handler, review []byte) string {
	t.Helper()
	answer := fixtures.Review(t, handler, review)
	for _, image := range []string{"log:v1", "log:v2", "log:v3"} {
		if strings.Contains(string(answer.Patch), `"image":"`+image+`"`) {
			return image
		}
	}
	return fmt.Sprintf("none, allowed %v", answer.Allowed)
}

func TestNewPodsGetTheStableRevision(t *testing.T) {
	pinnedTo := func(set map[string]any) map[string]any {
		set["spec"].(map[string]any)["injectionStrategy"] = map[string]any{"revision": map[string]any{"revisionName": revisionOf(t, logOf("log:v3")).Name, "policy": "Always"}}
		return set
	}
	none := func(set map[string]any) map[string]any {
		delete(set, "status")
		return set
	}
	tests := map[string]struct {
		set   map[string]any
		image string // that the snapshot has besides
		want  string
		asked []string
	}{
		"an edit":                               {edited(t, "log:v2", "log:v1", "Stable"), "log:v1", "log:v1", []string{"log"}},
		"without the annotation":                {edited(t, "log:v2", "log:v1", ""), "log:v1", "log:v2", nil},
		"with the default":                      {edited(t, "log:v2", "log:v1", "Latest"), "log:v1", "log:v2", nil},
		"an edit that is stable":                {edited(t, "log:v2", "log:v2", "Stable"), "log:v1", "log:v2", nil},
		"the first revision":                    {none(edited(t, "log:v2", "log:v1", "Stable")), "log:v1", "log:v2", nil},
		"a CRD that prunes the field":           {none(edited(t, "log:v3", "log:v1", "Stable")), "log:v1", "log:v3", nil},
		"an edit that leaves the hash as it is": {edited(t, "log:v2", "log:v1", "Stable"), "log:v2", "log:v2", nil},
		"injectionStrategy.revision wins":       {pinnedTo(edited(t, "log:v2", "log:v1", "Stable")), "log:v3", "log:v3", nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b := &behind{current: holding(t, tc.set, tc.image)}
			b.newest = b.current
			if got := imageOf(t, b.injector().static, webReview(t, unchanged)); got != tc.want || !slices.Equal(b.asked, tc.asked) {
				t.Errorf("%s after reads of %q, want %s after %q", got, b.asked, tc.want, tc.asked)
			}
		})
	}
}

// The condition Ready is exact: from the moment at which a revision is stored as stable, new Pods get it, also
// by a replica whose watch is behind. If the replica cannot know, or not soon, it holds back, and the Pod is
// allowed: nothing shows that the revision works.
func TestTheSidecarSetIsReadBeforeARevisionIsHeldBack(t *testing.T) {
	held, released := holding(t, edited(t, "log:v2", "log:v1", "Stable"), "log:v1"), storeOf(t, edited(t, "log:v2", "log:v2", "Stable"))
	for name, tc := range map[string]struct {
		know func(ctx context.Context, now **match.Snapshot) error
		want string
	}{
		"it is stable now":    {func(_ context.Context, now **match.Snapshot) error { *now = released; return nil }, "log:v2"},
		"it is not":           {func(context.Context, **match.Snapshot) error { return nil }, "log:v1"},
		"the read fails":      {func(context.Context, **match.Snapshot) error { return errors.New("etcd is away") }, "log:v1"},
		"the read takes long": {func(ctx context.Context, _ **match.Snapshot) error { <-ctx.Done(); return ctx.Err() }, "log:v1"},
	} {
		for _, timeout := range []time.Duration{time.Second, 30 * time.Second} {
			t.Run(fmt.Sprint(name, ", of ", timeout), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					current := held
					handler := newInjector(pods.Options{
						Snapshot: func() *match.Snapshot { return current }, Namespaces: &liveNamespaces{},
						Know: func(ctx context.Context, _ []string) error { return tc.know(ctx, &current) },
					})
					begin := time.Now()
					got := imageOf(t, func(ctx context.Context, w http.ResponseWriter, r server.Request) error {
						ctx, cancel := context.WithTimeout(ctx, timeout)
						defer cancel()
						return handler.static(ctx, w, r)
					}, webReview(t, unchanged))
					if took := time.Since(begin); got != tc.want || took > min(timeout/2, time.Second) {
						t.Errorf("%s after %v, want %s", got, took, tc.want)
					}
				})
			})
		}
	}
}

// A Pod whose record has one of the two revisions is left as it is: API servers may call several replicas for one
// Pod, of which some hold back.
func TestASecondCallChangesNoRevision(t *testing.T) {
	pod := fixtures.Pod("web").Label("app", "web").Container("app", "app:v1").Obj()
	held := edited(t, "log:v2", "log:v1", "Stable")
	for _, image := range []string{"log:v1", "log:v2"} {
		patch := fixtures.Review(t, injector(storeOf(t, logOf(image)), nil), fixtures.Encode(t, request(pod))).Patch
		b := &behind{current: holding(t, held, "log:v1"), newest: holding(t, held, "log:v1")}
		answer := fixtures.Review(t, server.Handler(b.injector().static), fixtures.Encode(t, request(fixtures.Patched(t, pod, patch))))
		if !answer.Allowed || len(answer.Patch) > 0 || len(b.asked) > 0 {
			t.Errorf("%s is replaced: %s, after reads of %q", image, answer.Patch, b.asked)
		}
	}
}

// The stable revision may be missing in the snapshot, because a watch is behind. A missing one denies no Pod.
func TestAMissingStableRevisionDeniesNoPod(t *testing.T) {
	data, err := revision.Data(logOf("log:v1")["spec"].(map[string]any))
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		server *lagging
		code   int
		want   string
	}{
		"stored":                 {&lagging{data: string(data)}, http.StatusOK, "log:v1"},
		"not stored":             {&lagging{}, http.StatusOK, "log:v2"},
		"stored, and unusable":   {&lagging{data: `{"spec":7}`}, http.StatusOK, "log:v2"},
		"the read fails":         {&lagging{err: errors.New("etcd is away")}, http.StatusServiceUnavailable, "looking up the stable revision of SidecarSet"},
		"the API server is slow": {&lagging{hangs: true}, http.StatusServiceUnavailable, "deadline exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				handler := tc.server.handler(t, nil, edited(t, "log:v2", "log:v1", "Stable"))
				for range 3 {
					if code, text := send(t, handler, "web"); code != tc.code || !strings.Contains(text, tc.want) {
						t.Errorf("%d, want %d with %q: %s", code, tc.code, tc.want, text)
					}
				}
				if reads := tc.server.reads.Load(); reads > 1 {
					t.Errorf("%d reads", reads)
				}
			})
		})
	}
}
