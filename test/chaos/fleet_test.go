package chaos

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

// fleet is a group of equal replicas. The test starts and stops them as a kubelet does.
type fleet struct {
	replicas []*deploy.Replica // a restarted one takes the place of the old
	args     []string
	serving  bool // whether the replicas answer webhooks
}

// amendOperator changes how replicas are started, until the test ends.
func amendOperator(t *testing.T, amend func(*stand.Command)) {
	operator.Amend = amend
	t.Cleanup(func() { operator.Amend = nil })
}

// startReplicas starts replicas, numbered from 1, at the same time, and returns
// when the API servers call them. They are stopped after the test. args are
// flags.
func startReplicas(t *testing.T, count int, args ...string) *fleet {
	t.Helper()
	f := startFleet(t, &fleet{args: args, serving: true}, 1, count)
	awaitCalls(t)
	return f
}

// startControllers starts replicas, numbered from 11, that serve no webhooks.
func startControllers(t *testing.T, count int, args ...string) *fleet {
	t.Helper()
	return startFleet(t, &fleet{args: append([]string{"--role=controller"}, args...)}, 11, count)
}

func startFleet(t *testing.T, f *fleet, first, count int) *fleet {
	t.Helper()
	operator.NeedReplicas(t)
	t.Cleanup(func() { f.stop(t) })
	for i := range count {
		replica, err := operator.StartReplicaUnready(t.Context(), first+i, f.args...)
		if err != nil {
			t.Fatal(err)
		}
		f.replicas = append(f.replicas, replica)
	}
	for _, replica := range f.replicas {
		if err := f.join(t.Context(), replica); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// join waits until a replica is ready, and then adds its endpoint.
func (f *fleet) join(ctx context.Context, replica *deploy.Replica) error {
	err := replica.AwaitReady(ctx)
	if err == nil && f.serving {
		err = operator.AddEndpoint(ctx, replica)
	}
	return err
}

// restart stops a replica and starts it again. As with a kubelet, the endpoint is
// withdrawn while the replica is asked to stop, and not before.
func (f *fleet) restart(t *testing.T, i int) error {
	t.Helper()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		f.replicas[i].Process.Stop()
	}()
	err := operator.RemoveEndpoint(t.Context(), f.replicas[i])
	<-stopped
	return errors.Join(err, f.start(t, i))
}

// start starts a replica that has ended.
func (f *fleet) start(t *testing.T, i int) error {
	t.Helper()
	f.replicas[i].CheckLog(t)
	started, err := operator.StartReplicaUnready(t.Context(), f.replicas[i].Number, f.args...)
	if err != nil {
		return err
	}
	f.replicas[i] = started
	return f.join(t.Context(), started)
}

// revive starts the replicas that have ended: a leader ends if it loses its Lease.
func (f *fleet) revive(t *testing.T) (started int) {
	t.Helper()
	for i, replica := range f.replicas {
		if replica.Running() {
			continue
		}
		started++
		if err := f.start(t, i); err != nil {
			t.Fatal(err)
		}
	}
	return started
}

// await is testkit.Await, and starts replicas again that have ended: on a busy machine, a
// leader may lose its Lease, and then it ends.
func (f *fleet) await(t *testing.T, sidecarSet, what string, check func(*appsv1beta1.SidecarSet) error) {
	t.Helper()
	testkit.Await(t, api, sidecarSet, what, func(set *appsv1beta1.SidecarSet) error {
		f.revive(t)
		return check(set)
	})
}

// kill ends all replicas as a crash does. Their endpoints remain.
func (f *fleet) kill() {
	for _, replica := range f.replicas {
		replica.Kill()
	}
}

// stop stops all replicas, and fails the test if one has panicked.
func (f *fleet) stop(t *testing.T) {
	t.Helper()
	var stopping sync.WaitGroup
	for _, replica := range f.replicas {
		stopping.Go(func() {
			if err := replica.Stop(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
			replica.CheckLog(t)
		})
	}
	stopping.Wait()
}

// awaitLeader waits until a replica leads, and returns its index.
func (f *fleet) awaitLeader(t *testing.T) int {
	t.Helper()
	var leader int
	await.Eventually(t, "a leader", func(context.Context) error {
		f.revive(t)
		leader = slices.IndexFunc(f.replicas, leads)
		if leader < 0 {
			return errors.New("no running replica says that it leads")
		}
		return nil
	})
	return leader
}

// awaitAnotherLeader waits until another replica than old leads.
func (f *fleet) awaitAnotherLeader(t *testing.T, old *deploy.Replica) {
	t.Helper()
	await.Eventually(t, "another leader", func(context.Context) error {
		if !slices.ContainsFunc(f.replicas, func(r *deploy.Replica) bool { return r != old && leads(r) }) {
			return errors.New("no other replica says that it leads")
		}
		return nil
	})
}

// leads reports whether a replica leads. One that has lost the Lease has ended, so a running one that once led still leads.
func leads(r *deploy.Replica) bool {
	return r.Running() && strings.Contains(r.Log(), "Successfully acquired lease")
}
