package pods_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/webhooks/pods"
	"github.com/sidecarset/operator/webhooks/server"
)

// pinned is a SidecarSet that injects revision v1, always or by chance.
func pinned(name, policy string) map[string]any {
	return fixtures.SidecarSet(name).Select("app", name).Container("side-"+name, "side:v2").
		Spec("updateStrategy", map[string]any{"partition": "50%"}).
		Spec("injectionStrategy", map[string]any{"revision": map[string]any{"customVersion": "v1", "policy": policy}}).Map()
}

// lagging is a replica whose snapshot lacks all recorded revisions.
type lagging struct {
	data  string // of all stored revisions; "" if there are none
	err   error
	hangs bool
	reads atomic.Int32
}

func (l *lagging) revision(ctx context.Context, compiled *inject.Compiled) (*appsv1.ControllerRevision, error) {
	l.reads.Add(1)
	if l.hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if l.data == "" || l.err != nil {
		return nil, l.err
	}
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{Name: compiled.Name() + "-1", Annotations: map[string]string{appsv1beta1.AnnotationHash: "h", appsv1beta1.AnnotationHashWithoutImage: "b"}},
		Data:       runtime.RawExtension{Raw: []byte(l.data)},
	}, nil
}

func (l *lagging) handler(t *testing.T, draw func() float64, sets ...map[string]any) server.Handler {
	t.Helper()
	store := storeOf(t, sets...)
	return newInjector(pods.Options{
		Snapshot: func() *match.Snapshot { return store }, Namespaces: &liveNamespaces{}, Revision: l.revision, Draw: draw,
	}).static
}

const recordedSide = `{"spec":{"$patch":"replace","containers":[{"name":"side","image":"side:v1","resources":{}}]}}`

// send returns the code of an answer, 422 if it denies the Pod, and the answer in plain text.
func send(t *testing.T, handler server.Handler, app string) (code int, text string) {
	t.Helper()
	pod := fixtures.Pod("p").Label("app", app).Container("app", "app:v1").Obj()
	w := fixtures.Send(t, handler, strings.NewReader(string(fixtures.Encode(t, request(pod)))))
	if w.Code != http.StatusOK {
		return w.Code, w.Body.String()
	}
	text = patchOf(t, w.Body.Bytes())
	if strings.Contains(text, `"code":422`) {
		return http.StatusUnprocessableEntity, text
	}
	return http.StatusOK, text
}

// A watch may be behind. So a Pod is denied for a missing revision only if the API server
// says that the revision is not stored.
func TestInjectorLooksForARevisionThatTheSnapshotLacks(t *testing.T) {
	tests := map[string]struct {
		server *lagging
		code   int
		want   string
	}{
		"stored":                         {&lagging{data: recordedSide}, http.StatusOK, "side:v1"},
		"not stored":                     {&lagging{}, http.StatusUnprocessableEntity, "no usable ControllerRevision matches"},
		"stored, and not usable":         {&lagging{data: `{"spec":{"containers":1}}`}, http.StatusUnprocessableEntity, "no usable ControllerRevision matches"},
		"the API server does not know":   {&lagging{err: errors.New("boom")}, http.StatusServiceUnavailable, "customVersion v1 of SidecarSet"},
		"the API server does not answer": {&lagging{hangs: true}, http.StatusServiceUnavailable, "context deadline exceeded"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				handler := tc.server.handler(t, nil, pinned("a", "Always"))
				if code, text := send(t, handler, "a"); code != tc.code || !strings.Contains(text, tc.want) {
					t.Errorf("%d, want %d with %q: %s", code, tc.code, tc.want, text)
				}
			})
		})
	}
}

// The Injector draws once for a Pod, also if it looks up the revision.
func TestInjectorDrawsOnceEvenIfItLooksUpTheRevision(t *testing.T) {
	for draw, want := range map[float64]string{0.4: "side:v1", 0.6: "side:v2"} {
		draws := 0
		l := &lagging{data: recordedSide}
		once := func() float64 { draws++; return draw }
		if code, text := send(t, l.handler(t, once, pinned("a", "Partial")), "a"); code != http.StatusOK || !strings.Contains(text, want) || draws != 1 {
			t.Errorf("%d after %d draws, want %s: %s", code, draws, want, text)
		}
	}
}

// Any user may send many Pods, and a SidecarSet may select all of them.
func TestMissingRevisionsCostFewReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sets []map[string]any
		for i := range 200 {
			sets = append(sets, pinned(fmt.Sprint("s-", i), "Always"))
		}
		l := &lagging{}
		handler := l.handler(t, nil, sets...)
		for range 100 {
			if code, text := send(t, handler, "s-0"); code != http.StatusUnprocessableEntity {
				t.Fatalf("%d: %s", code, text)
			}
		}
		if reads := l.reads.Load(); reads != 1 {
			t.Errorf("100 Pods of one SidecarSet cost %d reads, want 1", reads)
		}
		codes := map[int]int{}
		for i := range sets {
			code, _ := send(t, handler, fmt.Sprint("s-", i))
			codes[code]++
		}
		if reads := l.reads.Load(); reads > 40 || codes[http.StatusServiceUnavailable] < 150 || codes[http.StatusOK] > 0 {
			t.Errorf("200 SidecarSets cost %d reads; answers by code: %v", reads, codes)
		}
		l.data = recordedSide
		<-time.After(time.Second)
		if code, text := send(t, handler, "s-0"); code != http.StatusOK {
			t.Errorf("a second after the revision was stored: %d, %s", code, text)
		}
		l.err = errors.New("boom")
		<-time.After(time.Second)
		for range 3 { // a failure is used again for failureMemory
			for range 3 {
				if code, text := send(t, handler, "s-0"); code != http.StatusServiceUnavailable {
					t.Errorf("while the API server fails: %d, %s", code, text)
				}
			}
			<-time.After(200 * time.Millisecond)
		}
		if reads := l.reads.Load(); reads != 40+1+3 {
			t.Errorf("%d reads, want 44", reads)
		}
	})
}

// patchOf returns the answer, followed by its patch in plain text.
func patchOf(t *testing.T, body []byte) string {
	t.Helper()
	var review struct{ Response struct{ Patch []byte } }
	if err := json.Unmarshal(body, &review); err != nil {
		t.Fatal(err)
	}
	return string(body) + string(review.Response.Patch)
}
