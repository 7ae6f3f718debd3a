package snapshot

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
)

const (
	// lookEvery is how often Health looks at the version of etcd.
	lookEvery = 10 * time.Second
	// LowAgain is the time after which a version is read again that is lower than one that was seen.
	// One such reading does not mean a restore: a database behind etcd's API may have been read at
	// a copy that is behind.
	LowAgain = time.Second
)

// Health detects that the cluster's state was restored from a backup, and that no replica converts SidecarSets.
//
// After a restore, watches ask for the changes after a version that etcd has not reached
// again. So they stay silent, and the snapshot has observed SidecarSets that are not stored any more.
// What is read from etcd is never older than what was seen before the read began. If it is, twice
// in a row, etcd was restored, and the process has to end. Only versions of SidecarSets are compared, because
// API servers may keep other kinds in another etcd.
//
// A Health is safe for concurrent use.
type Health struct {
	converter   string      // the host that API servers call for conversions, if it is this operator
	unconverted atomic.Bool // SidecarSets could not be listed once, because the converter did not answer

	newest   uint64     // the version of the last list; only Run's goroutine uses it
	restored chan error // has capacity 1
}

// NewHealth returns a Health. converter is the host under which API servers call this operator.
func NewHealth(converter string) *Health {
	return &Health{converter: converter, restored: make(chan error, 1)}
}

// Unconverted reports whether SidecarSets could not be read because some replica has to convert them: an older version
// stored them as v1alpha1, and no replica is ready, so that API servers call none. It stays so: a replica that is not
// Ready before it has read them cannot convert the others.
func (h *Health) Unconverted() bool { return h.unconverted.Load() }

// Run looks every ten seconds, with live, until ctx ends; before SidecarSets were read, every second. It returns an error if the cluster's
// state was restored: the process has to end.
func (h *Health) Run(ctx context.Context, live client.Reader) error {
	for {
		pause := lookEvery
		if h.newest == 0 {
			pause = time.Second
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-h.restored:
			return err
		case <-time.After(pause):
		}
		if err := h.compare(ctx, live); err != nil {
			return err
		}
	}
}

// compare lists SidecarSets as they are stored, to get the version of etcd. Two lists in a row with a
// lower version than was seen before mean that etcd was restored.
func (h *Health) compare(ctx context.Context, live client.Reader) error {
	ctx, cancel := context.WithTimeout(ctx, lookEvery)
	defer cancel()
	version, err := Confirmed(ctx, h.newest, func(ctx context.Context) (uint64, error) {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(appsv1beta1.GroupVersion.WithKind(appsv1beta1.Kind.Kind + "List"))
		limit := client.Limit(1)
		if h.newest == 0 {
			limit = 500 // any of them may need a conversion; without a limit, an API server lists nothing until it has read all itself
		}
		err := live.List(ctx, list, limit)
		if err != nil {
			if strings.Contains(err.Error(), "conversion webhook for ") && strings.Contains(err.Error(), h.converter) {
				h.unconverted.Store(true)
			}
			return 0, err
		}
		return podstate.ParseVersion(list.ResourceVersion) // a version that is not a number has no order
	})
	switch {
	case err != nil:
		logf.FromContext(ctx).WithName("watches").V(1).Info("Failed to list SidecarSets", "reason", err.Error())
		return nil
	case version < h.newest:
		return h.Restored("the list of SidecarSets", h.newest, version)
	}
	h.newest = version
	return nil
}

// Confirmed returns the version that read returns. If it is lower than one that was seen before, it
// reads once more, after LowAgain.
func Confirmed(ctx context.Context, seen uint64, read func(context.Context) (uint64, error)) (uint64, error) {
	version, err := read(ctx)
	if err != nil || version >= seen {
		return version, err
	}
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(LowAgain):
		return read(ctx)
	}
}

// Restored notes that an object is stored in an older version than this process had seen before
// it was read. It makes Run end, and returns the reason for the request at hand.
func (h *Health) Restored(object string, seen, stored uint64) error {
	err := fmt.Errorf("the cluster's state (etcd) was restored from a backup: %s is of resourceVersion %d now, and this process has seen %d; "+
		"it ends, so that it starts again with what is stored", object, stored, seen)
	select {
	case h.restored <- err:
	default: // it is known
	}
	return err
}
