package executor

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/fixtures/cluster"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/tracker"
)

// rig is an Executor, and an API server that fails as the test says.
type rig struct {
	*Executor
	client *fake.Clientset
	item   tracker.WorkItem // without a Pod
	ahead  int64            // how many generations the API server is ahead of the leader
	now    *match.Snapshot
}

// newRig has Pods that are to get the image side:v2.
func newRig(t *testing.T, pods ...*corev1.Pod) *rig {
	t.Helper()
	r := &rig{client: fake.NewClientset()}
	for _, p := range pods {
		if err := r.client.Tracker().Add(p); err != nil {
			t.Fatal(err)
		}
	}
	r.follow(compiled(t, "side:v2"))
	r.Executor = New(Options{
		Done:    func(context.Context, tracker.WorkItem, tracker.Result) {},
		Current: func() *match.Snapshot { return r.now }, Pods: r.client.CoreV1(), Registry: prometheus.NewRegistry(),
		Revision: func(_ context.Context, name string) (*appsv1.ControllerRevision, error) {
			return nil, apierrors.NewNotFound(appsv1.Resource("controllerrevisions"), name)
		},
		Generation: func(context.Context, string) (int64, error) { return r.item.Compiled.Set.Generation + r.ahead, nil },
	})
	return r
}

// follow makes a compiled SidecarSet the current one.
func (r *rig) follow(p *inject.Compiled) {
	r.now = match.Build([]*inject.Compiled{p}, map[string]labels.Set{"a": {}})
	r.item = tracker.WorkItem{Compiled: p, Revision: inplace.RevisionOf(p), Since: 1}
}

// of is a WorkItem about a Pod that was Ready.
func (r *rig) of(name string, kind tracker.Kind) tracker.WorkItem {
	item := r.item
	item.Kind, item.Summary = kind, &podstate.Summary{UID: types.UID(name), Namespace: podstate.MakeNamespace("a"), Name: name}
	return item
}

// try carries out a WorkItem about a Pod that was Ready.
func (r *rig) try(t *testing.T, name string, kind tracker.Kind) tracker.Result {
	t.Helper()
	return r.carryOut(t.Context(), r.of(name, kind))
}

// change changes a Pod in the API server.
func (r *rig) change(t *testing.T, name string, change func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	p := r.pod(t, name).DeepCopy()
	change(p)
	if err := r.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), p, "a"); err != nil {
		t.Fatal(err)
	}
	return p
}

func (r *rig) pod(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	object, err := r.client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), "a", name)
	if err != nil {
		t.Fatal(err)
	}
	return object.(*corev1.Pod)
}

func (r *rig) image(t *testing.T, name string) string {
	t.Helper()
	return r.pod(t, name).Spec.Containers[1].Image
}

func compiled(t *testing.T, image string) *inject.Compiled {
	t.Helper()
	return compiledOf(t, fmt.Sprintf(`containers: [{name: side, image: %q, podInjectPolicy: AfterAppContainer}]`, image))
}

// compiledOf is SidecarSet "log" with these members of its spec.
func compiledOf(t *testing.T, spec string) *inject.Compiled {
	t.Helper()
	object := map[string]any{"metadata": map[string]any{"name": "log", "uid": "set", "generation": int64(2)}}
	text := "spec:\n  selector: {matchLabels: {app: web}}\n  updateStrategy: {type: RollingUpdate, maxUnavailable: 2}\n  " + spec
	if err := yaml.Unmarshal([]byte(text), &object); err != nil {
		t.Fatal(err)
	}
	p, err := inject.Compile(object)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// outdated returns a Pod that has the last revision, is ready, and has this name.
func outdated(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	return injected(t, name, compiled(t, "side:v1"))
}

// injected returns a Pod that was created with a compiled SidecarSet, and runs.
func injected(t *testing.T, name string, by *inject.Compiled) *corev1.Pod {
	t.Helper()
	p := cluster.Inject(t, fixtures.Pod(name).Namespace("a").Label("app", "web").Container("app", "app"), time.Unix(1, 0), by)
	p.UID, p.ResourceVersion = types.UID(name), "7"
	cluster.Run(p, true, time.Unix(1, 0))
	return p
}

// failPatches answers the first n patches of Pods with an error, before or after they
// are carried out.
func (r *rig) failPatches(n int, carriedOut bool, err error) {
	r.client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if n == 0 {
			return false, nil, nil
		}
		n--
		if carriedOut {
			reaction := clienttesting.ObjectReaction(r.client.Tracker())
			if _, _, err := reaction(action); err != nil {
				return true, nil, err
			}
		}
		return true, nil, err
	})
}

// verbs are the requests so far.
func (r *rig) verbs() string {
	var verbs []string
	for _, action := range r.client.Actions() {
		verbs = append(verbs, strings.TrimSuffix(action.GetVerb()+"/"+action.GetSubresource(), "/"))
	}
	return strings.Join(verbs, " ")
}

// start runs the Executor until the test ends, or stop is called.
func (r *rig) start(t *testing.T) (stop func(), stopped <-chan error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Start(ctx) }()
	return stop, done
}

// The Lease is released after Start has returned.
func TestStartReturnsWhenNoWriteIsUnderWay(t *testing.T) {
	r := newRig(t, outdated(t, "p"))
	sent, finish := make(chan struct{}), make(chan struct{})
	r.client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		close(sent)
		<-finish
		return false, nil, nil
	})
	stop, stopped := r.start(t)
	r.Write(r.of("p", tracker.Update))
	<-sent
	stop()
	select {
	case <-stopped:
		t.Fatal("Start returned with a write under way")
	case <-time.After(50 * time.Millisecond):
	}
	close(finish)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if got := r.image(t, "p"); got != "side:v2" {
		t.Errorf("the image is %s", got)
	}
	if n := len(r.client.Actions()); n != 2 {
		t.Fatalf("%d requests, want a read and a write", n)
	}
	r.Write(r.of("p", tracker.Reset))
	if n := len(r.client.Actions()); n != 2 {
		t.Error("after the end, more is written")
	}
}

// Two writes of one Pod do not overlap, those of several Pods do, and a defect ends none but its own.
func TestAPodHasOneWorkerAtATime(t *testing.T) {
	r := newRig(t, outdated(t, "p"), outdated(t, "q"))
	r.client.PrependReactor("get", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.(clienttesting.GetAction).GetName() == "q" {
			panic("nil map")
		}
		return false, nil, nil
	})
	first, others := make(chan tracker.Result), make(chan tracker.Result)
	r.Done = func(_ context.Context, item tracker.WorkItem, result tracker.Result) {
		if item.Kind == tracker.Label {
			first <- result
		} else {
			others <- result
		}
	}
	stop, stopped := r.start(t)
	r.Write(r.of("p", tracker.Label))
	r.Write(r.of("p", tracker.Update), r.of("q", tracker.Update))
	check(t, <-others, isRest, inplace.UpdateImpossible, "nil map")
	select {
	case <-others:
		t.Error("a Pod has two workers")
	case <-time.After(50 * time.Millisecond):
	}
	<-first
	check(t, <-others, isWritten, "", "")
	stop()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// The metric says what became of each update. A label of a Pod is no update.
func TestUpdatesAreCounted(t *testing.T) {
	for want, result := range map[string]tracker.Result{
		"written": {Version: 5}, "stale": {}, "rejected": {Reason: inplace.WriteRejected}, "failed": {Reason: inplace.WriteFailed}, "blocked": {Reason: inplace.NodeTooOld},
	} {
		r := newRig(t)
		for _, kind := range []tracker.Kind{tracker.Update, tracker.Label} {
			r.finish(t.Context(), r.of("p", kind), result)
		}
		registry := prometheus.NewRegistry()
		registry.MustRegister(r.updates)
		families, err := registry.Gather()
		if err != nil || len(families[0].GetMetric()) != 1 {
			t.Fatalf("%s: %v, %v", want, families, err)
		}
		m := families[0].GetMetric()[0]
		if m.GetLabel()[0].GetValue() != want || m.GetCounter().GetValue() != 1 {
			t.Errorf("%v, want one update that is %s", m, want)
		}
	}
}
