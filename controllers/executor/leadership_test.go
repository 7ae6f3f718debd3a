package executor

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/sidecarset/operator/internal/tracker"
)

// lock is a Lease that is renewed as the test says.
type lock struct {
	resourcelock.Interface
	err error
}

func (l *lock) Identity() string { return "me" }

func (l *lock) Update(context.Context, resourcelock.LeaderElectionRecord) error { return l.err }

func TestNoWriteIsSentOnceTheLeaseIsOld(t *testing.T) {
	r := newRig(t, outdated(t, "p"))
	inner := &lock{}
	r.Leadership = NewLeadership(time.Hour, 30*time.Minute)
	watched := &watchedLock{Interface: inner, leadership: r.Leadership}
	mine := resourcelock.LeaderElectionRecord{HolderIdentity: "me"}
	written := func() bool {
		r.try(t, "p", tracker.Update)
		return r.image(t, "p") == "side:v2"
	}
	if written() {
		t.Fatal("a process that never had the Lease has written")
	}
	inner.err = errors.New("no answer")
	_ = watched.Update(t.Context(), mine)
	if written() {
		t.Fatal("a process that could not renew the Lease has written")
	}
	inner.err = nil
	if err := watched.Update(t.Context(), mine); err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-31 * time.Minute)
	r.Leadership.renewed.Store(&long)
	if written() {
		t.Fatal("a process has written after the renew deadline")
	}
	_ = watched.Update(t.Context(), mine)
	if ctx, cancel, err := r.Leadership.write(t.Context()); err != nil {
		t.Fatal(err)
	} else {
		end, _ := ctx.Deadline()
		cancel()
		if left := time.Until(end); left > 30*time.Minute { // the Lease's time minus the renew deadline
			t.Errorf("a write may take %s", left)
		}
	}
	if err := watched.Update(t.Context(), resourcelock.LeaderElectionRecord{}); err != nil { // it is released
		t.Fatal(err)
	}
	if written() {
		t.Fatal("a process has written after it released the Lease")
	}
	_ = watched.Update(t.Context(), mine)
	if !written() {
		t.Error("the leader has not written")
	}
}
