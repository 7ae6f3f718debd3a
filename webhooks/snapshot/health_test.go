package snapshot_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/webhooks/snapshot"
)

// etcd is the API server's door to an etcd: lists of SidecarSets, and watches that the test
// drives.
type etcd struct {
	client.Reader

	mu      sync.Mutex
	version uint64
	err     error
	read    func() // called when the next list has been read
	watches []*watch.FakeWatcher
	from    []string // the versions that watches began at
}

func (e *etcd) set(version uint64, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.version, e.err = version, err
}

// List is the door of the client.
func (e *etcd) List(_ context.Context, into client.ObjectList, options ...client.ListOption) error {
	o := (&client.ListOptions{}).ApplyOptions(options)
	list, ok := into.(*metav1.PartialObjectMetadataList)
	if !ok || list.Kind != "SidecarSetList" || o.Limit != 1 && o.Limit != 500 || o.Raw != nil {
		return errors.New("a list of something else, or not a quorum read")
	}
	e.mu.Lock()
	version, err, read := e.version, e.err, e.read
	e.read = nil
	e.mu.Unlock()
	if read != nil {
		read()
	}
	list.ResourceVersion = strconv.FormatUint(version, 10)
	return err
}

// informerSource is the door of informers.
type informerSource struct{ *etcd }

func (e informerSource) List(metav1.ListOptions) (runtime.Object, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := &unstructured.UnstructuredList{}
	list.SetResourceVersion(strconv.FormatUint(e.version, 10))
	return list, e.err
}

func (e informerSource) Watch(options metav1.ListOptions) (watch.Interface, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return nil, e.err
	}
	w := watch.NewFake()
	e.watches, e.from = append(e.watches, w), append(e.from, options.ResourceVersion)
	return w, nil
}

func (informerSource) IsWatchListSemanticsUnSupported() bool { return true }

// watching returns how many watches have begun, and the newest one.
func (e *etcd) watching() (int, *watch.FakeWatcher) {
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.watches), e.watches[len(e.watches)-1]
}

// observed is a Health that runs beside an informer.
type observed struct {
	*snapshot.Health
	etcd  *etcd
	ended chan error
}

// observing runs a test beside a Health and an informer of a kind, in a bubble.
func observing(t *testing.T, prototype runtime.Object, test func(t *testing.T, o *observed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o := &observed{Health: snapshot.NewHealth(""), etcd: &etcd{version: 100}, ended: make(chan error, 1)}
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		go o.NewInformer(informerSource{o.etcd}, prototype, 0, toolscache.Indexers{}).RunWithContext(ctx)
		go func() { o.ended <- o.Run(ctx, o.etcd) }()
		pass(2 * time.Second)
		test(t, o)
	})
}

func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func sidecarSets() runtime.Object {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion("apps.kruise.io/v1beta1")
	object.SetKind("SidecarSet")
	return object
}

func namespaces() runtime.Object {
	return &corev1.Namespace{TypeMeta: metav1.TypeMeta{Kind: "Namespace"}}
}

func namespace(name, resourceVersion string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: resourceVersion}}
}

func bookmark(version string) *unstructured.Unstructured {
	object := sidecarSets().(*unstructured.Unstructured)
	object.SetResourceVersion(version)
	return object
}

func TestHealthEndsAProcessWhoseEtcdWasRestored(t *testing.T) {
	tests := map[string]struct {
		kind    runtime.Object
		happens func(o *observed)
		want    string // "" if the process goes on
	}{
		"nothing changes":           {sidecarSets(), func(*observed) {}, ""},
		"API servers do not answer": {sidecarSets(), func(o *observed) { o.etcd.set(0, errors.New("connection refused")) }, ""},
		"the state is from before an event": {sidecarSets(), func(o *observed) {
			_, w := o.etcd.watching()
			w.Action(watch.Bookmark, bookmark("130"))
			o.etcd.set(120, nil)
		}, "restored from a backup: the list of SidecarSets is of resourceVersion 120 now, and this process has seen 130"},
		"one list is read at a copy that is behind": {sidecarSets(), func(o *observed) {
			_, w := o.etcd.watching()
			w.Action(watch.Bookmark, bookmark("130"))
			o.etcd.set(120, nil)
			o.etcd.mu.Lock()
			defer o.etcd.mu.Unlock()
			o.etcd.read = func() { o.etcd.set(140, nil) } // the answer is 120
		}, ""},
		"a watch is ahead of a list under way": {sidecarSets(), func(o *observed) {
			_, w := o.etcd.watching()
			o.etcd.mu.Lock()
			defer o.etcd.mu.Unlock()
			o.etcd.read = func() { w.Action(watch.Bookmark, bookmark("150")); o.etcd.set(150, nil) }
		}, ""},
		"another kind is in another etcd": {namespaces(), func(o *observed) {
			_, w := o.etcd.watching()
			w.Add(namespace("a", "5000"))
		}, ""},
		"a read by name shows it": {sidecarSets(), func(o *observed) { _ = o.Restored("SidecarSet log", 70, 60) },
			"restored from a backup: SidecarSet log is of resourceVersion 60 now, and this process has seen 70"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			observing(t, tc.kind, func(t *testing.T, o *observed) {
				pass(10 * time.Second)
				tc.happens(o)
				pass(20 * time.Second)
				select {
				case err := <-o.ended:
					if tc.want == "" || !strings.Contains(err.Error(), tc.want) {
						t.Errorf("the process ends: %v; want %q", err, tc.want)
					}
				default:
					if tc.want != "" {
						t.Error("the process goes on")
					}
				}
			})
		})
	}
}

// API servers convert at ready replicas only. So a replica is ready that cannot read SidecarSets without one.
func TestHealthSeesThatNobodyConverts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, etcd := snapshot.NewHealth("ours.svc"), &etcd{}
		go func() { _ = h.Run(t.Context(), etcd) }()
		for _, step := range []struct {
			err  string
			want bool
		}{
			{`conversion webhook for apps.kruise.io/v1alpha1, Kind=SidecarSet failed: Post "https://theirs.svc:443/convert?timeout=30s": no endpoints available`, false},
			{`Get "https://10.0.0.1:443": connection refused`, false},
			{`conversion webhook for apps.kruise.io/v1alpha1, Kind=SidecarSet failed: Post "https://ours.svc:443/convert?timeout=30s": no endpoints available`, true},
			{`Get "https://10.0.0.1:443": connection refused`, true}, // until it has read them
		} {
			etcd.set(0, errors.New(step.err))
			if pass(2 * time.Second); h.Unconverted() != step.want {
				t.Errorf("%s: %t", step.err, h.Unconverted())
			}
		}
	})
}

func TestHealthBeginsASilentWatchAnew(t *testing.T) {
	observing(t, namespaces(), func(t *testing.T, o *observed) {
		_, w := o.etcd.watching()
		for _, sign := range []func(){
			func() { w.Add(namespace("a", "108")) },
			func() { w.Action(watch.Bookmark, namespace("", "109")) },
			func() { w.Action(watch.Bookmark, namespace("", "109")) },
		} {
			pass(snapshot.WatchSilence - 20*time.Second)
			sign()
		}
		if n, _ := o.etcd.watching(); n != 1 {
			t.Fatalf("%d watches, though each event is a sign of life", n)
		}
		pass(snapshot.WatchSilence + 20*time.Second)
		n, next := o.etcd.watching()
		if n != 2 || o.etcd.from[1] != "109" || !w.IsStopped() {
			t.Fatalf("%d watches, from %v; the silent one is stopped: %v", n, o.etcd.from, w.IsStopped())
		}
		next.Add(namespace("b", "110")) // the informer goes on with the new one
		pass(snapshot.WatchSilence - 20*time.Second)
		if n, _ := o.etcd.watching(); n != 2 || next.IsStopped() {
			t.Errorf("%d watches", n)
		}
	})
}

func TestInformersAreSoonBackAfterAnOutage(t *testing.T) {
	observing(t, namespaces(), func(t *testing.T, o *observed) {
		_, w := o.etcd.watching()
		o.etcd.set(100, errors.New("connection refused"))
		w.Stop()
		pass(time.Hour)
		o.etcd.set(100, nil)
		pass(snapshot.WatchPause.Cap * 3 / 2)
		if n, _ := o.etcd.watching(); n != 2 {
			t.Errorf("%d watches", n)
		}
	})
}
