package chaos

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// scene is a SidecarSet that replicas inject, and the Pods that are created during faults. Replicas
// reach the first API server through a proxy.
type scene struct {
	name, namespace       string
	proxy                 *proxy
	controllers, webhooks *fleet
	version               int // of the SidecarSet's image
	lostLeases            int
}

// newScene starts two replicas of each role.
func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{name: "faults", version: 1}
	var flags []string
	s.proxy, flags = startProxy(t)
	s.controllers = startControllers(t, 2, slices.Concat(flags, takeoverLeases)...)
	s.webhooks = startReplicas(t, 2, slices.Concat(flags, []string{"--role=webhook"})...)
	s.namespace = testkit.Namespace(t, api, nil)
	applySidecarSet(t, s.namespace, s.name)
	awaitInjection(t, s.webhooks, s.namespace, s.name, 1)
	s.controllers.await(t, s.name, "the status", testkit.Observed)
	return s
}

// change changes what is to be injected.
func (s *scene) change(t *testing.T) {
	t.Helper()
	s.version++
	mustChangeImage(t, s.name, s.image())
}

func (s *scene) image() string { return fmt.Sprintf("example.com/sidecar:v%d", s.version) }

// recover waits until everything works, long enough for a change of leaders, and returns how
// long that took. Controllers that have ended are started again.
func (s *scene) recover(t *testing.T) time.Duration {
	t.Helper()
	begin := time.Now()
	await.Within(t, 2*await.Patience, "a recovery", func(ctx context.Context) error {
		s.lostLeases += s.controllers.revive(t)
		if s.webhooks.revive(t) > 0 {
			t.Error("a replica that answers webhooks has ended")
		}
		return s.works(ctx)
	})
	return time.Since(begin)
}

// works returns an error unless every replica injects the current image, and a leader
// has written the status.
func (s *scene) works(ctx context.Context) error {
	if err := injects(ctx, s.namespace, s.name, s.image(), 10); err != nil {
		return err
	}
	set, err := testkit.Get(ctx, api, s.name)
	if err != nil {
		return err
	}
	return testkit.Observed(set)
}

// lasts waits for as long as a fault lasts.
func lasts(short, long time.Duration) { <-time.After(testkit.Scaled(short, long)) }

// again does something every half a second, for as long as a fault of the connection lasts.
func again(do func()) {
	for end := time.Now().Add(testkit.Scaled(1500*time.Millisecond, 15*time.Second)); time.Now().Before(end); <-time.After(500 * time.Millisecond) {
		do()
	}
}

// Whatever happens to leaders, to an API server, to etcd, and between replicas and the API server, Pods
// get the content that the replicas have seen before. After the fault, Pods get the changed content, and
// no user has to do anything. Leaders may lose their Lease, and are started again.
func TestFaultsChangeNoDecision(t *testing.T) {
	s := newScene(t)
	for _, tc := range []struct {
		name    string
		rounds  int
		through []kubernetes.Interface // which API servers create the Pods
		waits   bool                   // whether Pods are created only after the fault
		fault   func(*testing.T)
	}{
		{"every request takes half a second longer", 1, clients, false, func(*testing.T) {
			s.proxy.impose(late(500 * time.Millisecond))
			again(func() {})
		}},
		{"one request of three fails", 1, clients, false, func(*testing.T) {
			s.proxy.impose(failing())
			again(func() {})
		}},
		{"every watch is cut twice a second", 1, clients, false, func(*testing.T) { again(s.proxy.cutWatches) }},
		{"every connection is cut twice a second", 1, clients, false, func(*testing.T) { again(s.proxy.server.CloseClientConnections) }},
		{"no request is answered, and replicas stay ready", 1, clients, false, func(t *testing.T) {
			readiness := newCallers(t, 100*time.Millisecond)
			for _, replica := range s.webhooks.replicas {
				readiness.repeat(replica.Name+" is ready", replica.Ready)
			}
			s.proxy.impose(s.proxy.silent)
			s.proxy.cutWatches()
			lasts(8*time.Second, 2*time.Minute)
			s.proxy.lift() // until then, Pods of a shard in which a SidecarSet changes may be refused
			readiness.end().check(t)
		}},
		{"the leader is killed", testkit.Scaled(3, 20), clients, false, func(t *testing.T) {
			s.controllers.replicas[s.controllers.awaitLeader(t)].Kill()
			lasts(time.Second, 2*time.Second)
		}},
		{"etcd hangs", 1, clients, true, func(t *testing.T) {
			if err := cluster.Signal(t.Context(), "etcd", syscall.SIGSTOP); err != nil {
				t.Error(err)
			}
			lasts(4*time.Second, 10*time.Second)
			if err := cluster.Signal(t.Context(), "etcd", syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
		}},
		{"the API server of the operator is killed", testkit.Scaled(1, 5), clients[1:], false, func(t *testing.T) {
			if err := cluster.Kill(t.Context(), "kube-apiserver-1"); err != nil {
				t.Error(err)
			}
			lasts(time.Second, 10*time.Second)
			if err := cluster.Restart(t.Context(), "kube-apiserver-1"); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			load := testkit.Load{Clients: tc.through, Namespace: s.namespace, Labels: testkit.AppLabels(s.name), Sidecars: []string{s.name}, Rate: 20, DryRun: !tc.waits, Patience: time.Minute}
			others := load
			others.Labels, others.Sidecars, others.Rate = testkit.AppLabels("other"), nil, 5
			for range tc.rounds {
				s.lostLeases = 0
				first, second := load.Start(t.Context()), others.Start(t.Context())
				tc.fault(t)
				figures, unselected := first.Stop(), second.Stop()
				s.change(t)
				s.proxy.lift()
				recovery := s.recover(t)
				testkit.Report(t, "lost-leases=%d recovery=%s selected: %s others: %s", s.lostLeases, testkit.Rounded(recovery), &figures, &unselected)
				if tc.waits { // etcd decides which of them are created
					figures.Failed, unselected.Failed = 0, 0
				}
				check(t, figures)
				check(t, unselected)
			}
		})
	}
}

// check fails the test unless every Pod was created with its sidecars.
func check(t *testing.T, figures testkit.Figures) {
	t.Helper()
	if figures.Created == 0 || figures.Failed > 0 || figures.Uninjected > 0 {
		t.Errorf("%s; failures: %q", &figures, figures.Errors)
	}
}
