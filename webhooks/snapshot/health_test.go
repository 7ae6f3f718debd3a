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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/webhooks/snapshot"
)

// etcd is an API server that lists SidecarSets at a version that the test sets.
type etcd struct {
	client.Reader

	mu      sync.Mutex
	version uint64
	err     error
	read    func() // called when the next list has been read
}

func (e *etcd) set(version uint64, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.version, e.err = version, err
}

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

func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestHealthEndsAProcessWhoseEtcdWasRestored(t *testing.T) {
	for name, tc := range map[string]struct {
		happens func(h *snapshot.Health, e *etcd)
		want    string // "" if the process continues
	}{
		"nothing changes":           {func(*snapshot.Health, *etcd) {}, ""},
		"API servers do not answer": {func(_ *snapshot.Health, e *etcd) { e.set(0, errors.New("connection refused")) }, ""},
		"the state is older": {func(_ *snapshot.Health, e *etcd) { e.set(90, nil) },
			"restored from a backup: the list of SidecarSets is of resourceVersion 90 now, and this process has seen 100"},
		"one list is read at a copy that is behind": {func(_ *snapshot.Health, e *etcd) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.version, e.read = 90, func() { e.set(140, nil) } // the answer is 90
		}, ""},
		"a read by name shows it": {func(h *snapshot.Health, _ *etcd) { _ = h.Restored("SidecarSet log", 70, 60) },
			"restored from a backup: SidecarSet log is of resourceVersion 60 now, and this process has seen 70"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, e, ended := snapshot.NewHealth(""), &etcd{version: 100}, make(chan error, 1)
				ctx, cancel := context.WithCancel(t.Context())
				defer synctest.Wait()
				defer cancel()
				go func() { ended <- h.Run(ctx, e) }()
				pass(12 * time.Second)
				tc.happens(h, e)
				pass(20 * time.Second)
				select {
				case err := <-ended:
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
