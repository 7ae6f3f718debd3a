package controllers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	sourcetesting "k8s.io/client-go/tools/cache/testing"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/tracker"
	"github.com/sidecarset/operator/test/await"
)

// podSource is an API server's list and watch of Pods, without WatchList.
type podSource struct {
	*sourcetesting.FakeControllerSource
}

func (podSource) IsWatchListSemanticsUnSupported() bool { return true }

// watchedTracker runs the real reflector over a source.
func watchedTracker(t *testing.T, source cache.ListerWatcher) *podTracker {
	t.Helper()
	p := newPodTracker(&fixtures.Snapshots{}, source, nil, newCollectors(prometheus.NewRegistry()))
	runTracker(t, p)
	return p
}

// runTracker runs a podTracker with SidecarSet "log", until the test ends.
func runTracker(t *testing.T, p *podTracker) {
	t.Helper()
	set := fixtures.LogSet(1)
	set.Status.ObservedGeneration, set.Status.LatestRevision = 1, "log-1"
	p.sets.(*fixtures.Snapshots).SwapSnapshot(match.Build([]*inject.Compiled{compiledOf(t, set)}, nil))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("Start: %v", err)
		}
	})
}

// look is a pass that writes nothing.
func (p *podTracker) look(ctx context.Context) (tracker.Pass, error) {
	compiled, ok := p.sets.Current().Get("log")
	if !ok || !p.synced.Load() {
		return tracker.Pass{}, errors.New("the Pods have not been listed")
	}
	pass, _, ok, err := p.pass(ctx, tracker.Current{Compiled: compiled, Revision: compiled.Revision(), Status: rollout.Begun})
	if err == nil && !ok {
		err = errors.New("the SidecarSet is not known")
	}
	return pass, err
}

// comesTo waits until that many Pods count for the rollout.
func (p *podTracker) comesTo(t *testing.T, want int) {
	t.Helper()
	await.Eventually(t, "the Pods that count", func(ctx context.Context) error {
		pass, err := p.look(ctx)
		if err == nil && pass.Plan.Total != want {
			err = fmt.Errorf("%d Pods count, want %d", pass.Plan.Total, want)
		}
		return err
	})
}

func (p *podTracker) becomes(t *testing.T, want tracker.Counters) {
	t.Helper()
	await.Eventually(t, "the counters", func(ctx context.Context) error {
		pass, err := p.look(ctx)
		if err == nil && pass.Counters != want {
			err = fmt.Errorf("counters = %+v, want %+v", pass.Counters, want)
		}
		return err
	})
}

func allReady(n int32) tracker.Counters {
	return tracker.Counters{Matched: n, Updated: n, Ready: n, UpdatedReady: n}
}

func TestPodWatch(t *testing.T) {
	server := podSource{sourcetesting.NewFakeControllerSource()}
	const initial = 8
	for i := range initial {
		server.Add(webPod(i))
	}
	p := watchedTracker(t, server)
	p.becomes(t, allReady(initial))

	server.Add(webPod(initial))
	p.becomes(t, allReady(initial+1))
	server.Modify(notReady(webPod(0)))
	p.becomes(t, tracker.Counters{Matched: initial + 1, Updated: initial + 1, Ready: initial, UpdatedReady: initial})
	server.Delete(webPod(0)) // C §17 T15: without a deletionTimestamp before
	p.becomes(t, allReady(initial))

	// The reflector lists again after a gap between watches. It then finds Pods
	// that are gone, new or changed, and other Pods under an old name.
	server.DeleteDropWatch(webPod(1))
	server.AddDropWatch(webPod(initial + 1))
	server.AddDropWatch(webPod(initial + 2))
	server.ModifyDropWatch(notReady(webPod(2)))
	again := webPod(3)
	again.UID, again.Labels = "another", nil
	server.DeleteDropWatch(webPod(3))
	server.AddDropWatch(again)
	server.ResetWatch()
	p.becomes(t, tracker.Counters{Matched: initial, Updated: initial, Ready: initial - 1, UpdatedReady: initial - 1})
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// What an API server is asked about Pods, if it has no WatchList. test/integration has a real
// API server, with WatchList.
func TestPodsAreListedInProtobufAndPages(t *testing.T) {
	type question struct{ limit, version, after string }
	var mu sync.Mutex
	var lists []question
	answer := func(r *http.Request) (code int, body any) {
		query := r.URL.Query()
		if accept := r.Header.Get("Accept"); !strings.HasPrefix(accept, "application/vnd.kubernetes.protobuf") {
			t.Errorf("Pods are asked for as %q", accept)
		}
		switch {
		case query.Get("sendInitialEvents") != "":
			return http.StatusUnprocessableEntity, metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity}
		case query.Get("watch") != "":
			<-r.Context().Done()
			return http.StatusServiceUnavailable, nil
		}
		mu.Lock()
		defer mu.Unlock()
		lists = append(lists, question{query.Get("limit"), query.Get("resourceVersion"), query.Get("continue")})
		if query.Get("continue") == "" {
			return http.StatusOK, corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: "more"}, Items: []corev1.Pod{*webPod(1), *webPod(2)}}
		}
		return http.StatusOK, corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []corev1.Pod{*webPod(3)}}
	}
	source, err := newPodListerWatcher(&rest.Config{Host: "http://api.test", QPS: -1}, &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
		code, body := answer(r)
		text, err := json.Marshal(body)
		return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(text))}, err
	})})
	if err != nil {
		t.Fatal(err)
	}
	watchedTracker(t, source).becomes(t, allReady(3))
	mu.Lock()
	defer mu.Unlock()
	// At version "0" API servers would answer with all Pods at once.
	want := []question{{fmt.Sprint(podPageSize), "", ""}, {fmt.Sprint(podPageSize), "", "more"}}
	if diff := cmp.Diff(want, lists, cmp.AllowUnexported(question{})); diff != "" {
		t.Errorf("lists (-want +got):\n%s", diff)
	}
}

// The reflector collects the initial objects in stores of its own: they have to be small there already.
func TestTheReflectorsKeepLittle(t *testing.T) {
	pods := cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc, cache.WithTransformer((&podStore{}).Transformer()))
	nodes := cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc, cache.WithTransformer(nodeStore{}.Transformer()))
	for range 2 { // an object that is replaced is transformed again
		if err := errors.Join(pods.Add(webPod(1)), nodes.Add(nodeNamed("n", corev1.ConditionFalse)), pods.Replace(pods.List(), "7")); err != nil {
			t.Fatal(err)
		}
	}
	if _, isSummary := pods.List()[0].(*podstate.Summary); !isSummary || pods.ListKeys()[0] != "ns/web-1" {
		t.Errorf("the store of Pods has %T under %v", pods.List()[0], pods.ListKeys())
	}
	if diff := cmp.Diff([]any{node{"n", inplace.Node{NotReady: true}}}, nodes.List(), cmp.AllowUnexported(node{})); diff != "" {
		t.Errorf("the store of Nodes (-want +got):\n%s", diff)
	}
	if err := errors.Join(pods.Delete(webPod(1)), nodes.Delete(nodeNamed("n", corev1.ConditionTrue))); err != nil || len(pods.List())+len(nodes.List()) != 0 {
		t.Errorf("Delete: %v; %v and %v are left", err, pods.ListKeys(), nodes.ListKeys())
	}
}

// The watch must wait for the tracker, not fill the memory.
func TestPodStoreWaitsWhileTheQueueIsFull(t *testing.T) {
	p := newPodTracker(&fixtures.Snapshots{}, nil, nil, newCollectors(prometheus.NewRegistry()))
	ctx, stop := context.WithCancel(t.Context())
	store := &podStore{do: func(f func(*tracker.Tracker)) error { return p.do(ctx, f) }, events: p.m.podEvents}
	for i := range podQueueLength {
		if err := store.Add(webPod(i)); err != nil {
			t.Fatalf("Add %d: %v", i, err)
		}
	}
	blocked := make(chan error)
	go func() { blocked <- store.Add(webPod(podQueueLength)) }()
	stop()
	if err := <-blocked; !errors.Is(err, context.Canceled) {
		t.Errorf("Add with a full queue: %v", err)
	}
}
