package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/tally"
)

// watchedTally runs the real Pod watch against a server.
func watchedTally(t *testing.T, server *podServer) *podTally {
	t.Helper()
	sets := &sidecarSets{}
	p := newPodTally(sets, server.listerWatcher(t), tally.Options{}, newCollectors(prometheus.NewRegistry()))
	p.changed = func(string) {}
	sets.swap(logSet(1))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("Start: %v", err)
		}
	})
	return p
}

func (p *podTally) becomes(t *testing.T, want tally.Counters) {
	t.Helper()
	eventually(t, func() error {
		n, err := p.count(t.Context(), "log")
		switch {
		case err != nil:
			return err
		case !n.Synced:
			return errors.New("the Pods have not been listed")
		case n.Counters != want:
			return fmt.Errorf("counters = %+v, want %+v", n.Counters, want)
		}
		return nil
	})
}

func allReady(n int32) tally.Counters {
	return tally.Counters{Matched: n, Updated: n, Ready: n, UpdatedReady: n}
}

func TestPodWatch(t *testing.T) {
	for name, refuse := range map[string]bool{"with WatchList": false, "with WatchList refused": true} {
		t.Run(name, func(t *testing.T) {
			server := newPodServer(t)
			server.refuseWatchList = refuse
			const initial = 2*podPageSize + 1
			for i := range initial {
				server.put(webPod(i))
			}
			p := watchedTally(t, server)
			p.becomes(t, allReady(initial))

			server.put(webPod(initial))
			p.becomes(t, allReady(initial+1))
			server.put(notReady(webPod(0)))
			p.becomes(t, tally.Counters{Matched: initial + 1, Updated: initial + 1, Ready: initial, UpdatedReady: initial})
			server.remove(webPod(0)) // C §17 T15: without a deletionTimestamp before
			p.becomes(t, allReady(initial))

			// The reflector lists again after a gap between watches. It then finds Pods
			// that are gone, new or changed, and other Pods under an old name.
			server.missed(func() {
				server.change(watch.Deleted, webPod(1))
				server.change(watch.Added, webPod(initial+1))
				server.change(watch.Added, webPod(initial+2))
				server.change(watch.Modified, notReady(webPod(2)))
				again := webPod(3)
				again.UID = "another"
				again.Labels = nil
				server.change(watch.Modified, again)
			})
			p.becomes(t, tally.Counters{Matched: initial, Updated: initial, Ready: initial - 1, UpdatedReady: initial - 1})

			checkRequests(t, server, refuse)
		})
	}
}

func checkRequests(t *testing.T, server *podServer, refuse bool) {
	t.Helper()
	requests, accepts := server.seen()
	for _, accept := range accepts {
		if !strings.HasPrefix(accept, "application/vnd.kubernetes.protobuf") {
			t.Errorf("Pods are asked for as %q", accept)
		}
	}
	listed := slices.ContainsFunc(requests, func(r string) bool { return strings.HasPrefix(r, "list") })
	if listed != refuse {
		t.Errorf("listed is %v: %v", listed, requests)
	}
	for _, request := range requests {
		if strings.HasPrefix(request, "list") && (!strings.Contains(request, fmt.Sprint("limit=", podPageSize)) || strings.HasSuffix(request, "rv=0")) {
			t.Errorf("a list is not in pages: %s", request)
		}
	}
}

// The reflector collects the initial Pods in a store of its own; they have to be
// records there already.
func TestPodStoreTransformsOnce(t *testing.T) {
	transform := (&podStore{}).Transformer()
	first, err := transform(webPod(1))
	if err != nil {
		t.Fatalf("first: %v", err)
	}
	if _, isRecord := first.(*podstate.Record); !isRecord {
		t.Errorf("a Pod becomes %T", first)
	}
	second, err := transform(first)
	if err != nil || second != first {
		t.Errorf("second: %v, %v; want the same record", second, err)
	}
	if _, err := transform("nonsense"); err == nil {
		t.Error("nonsense is accepted")
	}
	temporary := cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc, cache.WithTransformer(transform))
	if err := temporary.Add(webPod(1)); err != nil {
		t.Fatalf("Add: %v", err)
	}
	if diff := cmp.Diff([]string{"ns/web-1"}, temporary.ListKeys()); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
	if err := temporary.Delete(webPod(1)); err != nil || len(temporary.List()) != 0 {
		t.Errorf("Delete: %v, %d left", err, len(temporary.List()))
	}
}

// localStore runs everything at once, on a tally that selects app=web.
func localStore(t *testing.T) (*podStore, *tally.Tally) {
	t.Helper()
	sets := &sidecarSets{}
	sets.swap(logSet(1))
	tl := tally.New(tally.Options{})
	tl.SetSnapshot(sets.Current())
	return &podStore{
		do:     func(f func(*tally.Tally)) error { f(tl); return nil },
		synced: func() {},
		events: newCollectors(prometheus.NewRegistry()).podEvents,
	}, tl
}

func TestPodStoreTakesPodsAndRecords(t *testing.T) {
	pod := webPod(1)
	record := podstate.FromPod(pod)
	forms := map[string]any{"a Pod": pod, "a record": record, "a listed record": listedRecord{record}}
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			s, tl := localStore(t)
			check := func(what string, err error, want int) {
				t.Helper()
				if err != nil || tl.Pods() != want {
					t.Errorf("%s: %v, %d Pods; want %d", what, err, tl.Pods(), want)
				}
			}
			check("Add", s.Add(form), 1)
			check("Update", s.Update(form), 1)
			check("Delete", s.Delete(form), 0)
			check("Replace", s.Replace([]any{form, webPod(2)}, "1"), 2)
			check("Resync", s.Resync(), 2)
		})
	}
}

func TestPodStoreRefusesWhatIsNoPod(t *testing.T) {
	s, tl := localStore(t)
	for name, err := range map[string]error{
		"Add": s.Add(&corev1.Node{}), "Update": s.Update(1), "Delete": s.Delete("x"),
		"Replace": s.Replace([]any{webPod(1), "x"}, "1"),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if tl.Pods() != 0 {
		t.Errorf("%d Pods", tl.Pods())
	}
}

// The watch must wait for the tally, not fill the memory.
func TestPodStoreWaitsWhileTheQueueIsFull(t *testing.T) {
	p := newPodTally(&sidecarSets{}, nil, tally.Options{}, newCollectors(prometheus.NewRegistry()))
	ctx, stop := context.WithCancel(t.Context())
	store := &podStore{do: func(f func(*tally.Tally)) error { return p.do(ctx, f) }, events: p.m.podEvents}
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

// BenchmarkPodUpdate is one decoded Pod on its way to the counters: the record,
// the queue and the count.
func BenchmarkPodUpdate(b *testing.B) {
	sets := &sidecarSets{}
	m := newCollectors(prometheus.NewRegistry())
	p := newPodTally(sets, nil, tally.Options{}, m)
	p.changed = func(string) {}
	sets.swap(logSet(1))
	go p.own(b.Context())
	store := &podStore{do: func(f func(*tally.Tally)) error { return p.do(b.Context(), f) }, events: m.podEvents}
	pods := [2]*corev1.Pod{webPod(1), notReady(webPod(1))}
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		i++
		if err := store.Update(pods[i%2]); err != nil {
			b.Fatal(err)
		}
	}
}
