package executor

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Leadership knows when this process last renewed the leader's Lease, by the process's
// monotonic clock. A leader that was paused, or that gets no answers from the API
// server, stops writing before another process can take the Lease. A nil Leadership
// belongs to a process without leader election.
type Leadership struct {
	deadline, timeout time.Duration

	renewed  atomic.Pointer[time.Time] // when the last renewal that succeeded was sent
	recorder atomic.Pointer[resourcelock.EventRecorder]
}

// NewLeadership returns the Leadership of a process that renews its Lease within
// renewDeadline. Other processes may take the Lease after leaseDuration.
func NewLeadership(leaseDuration, renewDeadline time.Duration) *Leadership {
	return &Leadership{deadline: renewDeadline, timeout: (leaseDuration - renewDeadline) * 4 / 5}
}

// timeoutWithoutLease bounds a write of a process that holds no Lease.
const timeoutWithoutLease = 10 * time.Second

var errNotLeading = errors.New("the Lease was not renewed in time")

// write returns a context for one write, which ends before another process can hold the
// Lease. It returns errNotLeading if the last renewal is too old.
func (l *Leadership) write(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if l == nil {
		ctx, cancel := context.WithTimeout(ctx, timeoutWithoutLease)
		return ctx, cancel, nil
	}
	renewed := l.renewed.Load()
	if renewed == nil || time.Since(*renewed) >= l.deadline {
		return nil, nil, errNotLeading
	}
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	return ctx, cancel, nil
}

// Lock returns the leader election lock on the Lease. identity must be unique. The
// lock's Events are written only after Record was called.
func (l *Leadership) Lock(config *rest.Config, namespace, name, identity string) (resourcelock.Interface, error) {
	lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, namespace, name,
		resourcelock.ResourceLockConfig{Identity: identity, EventRecorder: lateRecorder{l}}, config, l.deadline)
	if err != nil {
		return nil, err
	}
	return &watchedLock{Interface: lock, leadership: l}, nil
}

// Record sets the recorder that the lock writes its Events with.
func (l *Leadership) Record(r resourcelock.EventRecorder) { l.recorder.Store(&r) }

// watchedLock notes each renewal of the lock by this process.
type watchedLock struct {
	resourcelock.Interface
	leadership *Leadership
}

// Create makes the Lease.
func (w *watchedLock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return w.note(r, func() error { return w.Interface.Create(ctx, r) })
}

// Update renews, takes or releases the Lease.
func (w *watchedLock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return w.note(r, func() error { return w.Interface.Update(ctx, r) })
}

// note records the time before the request was sent: other processes measure from when
// they see the result, which is later.
func (w *watchedLock) note(r resourcelock.LeaderElectionRecord, write func() error) error {
	start := time.Now()
	mine := r.HolderIdentity == w.Identity()
	if !mine {
		w.leadership.renewed.Store(nil)
	}
	err := write()
	if err == nil && mine {
		w.leadership.renewed.Store(&start)
	}
	return err
}

// lateRecorder is the lock's recorder: the lock is created before the manager that has
// the real recorder.
type lateRecorder struct{ leadership *Leadership }

// Eventf writes an Event.
func (l lateRecorder) Eventf(object runtime.Object, kind, reason, format string, args ...any) {
	if r := l.leadership.recorder.Load(); r != nil {
		(*r).Eventf(object, kind, reason, format, args...)
	}
}
