package chaos

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// scene is a SidecarSet that replicas inject, and the Pods that are created during faults.
type scene struct {
	name, namespace       string
	controllers, webhooks *fleet
	version               int // of the SidecarSet's image
	selected, others      testkit.Load
	lostLeases            int
}

// newScene starts two replicas of each role, with flags.
func newScene(t *testing.T, name string, flags ...string) *scene {
	t.Helper()
	s := &scene{name: name, version: 1}
	s.controllers = startControllers(t, 2, flags...)
	s.webhooks = startReplicas(t, 2, append([]string{"--role=webhook"}, flags...)...)
	s.namespace = newNamespace(t)
	applySidecarSet(t, s.namespace, name)
	awaitInjection(t, s.webhooks, s.namespace, name, 1)
	testkit.AwaitObserved(t, api, name)
	s.selected = testkit.Load{Clients: clients, Namespace: s.namespace, Labels: testkit.AppLabels(name), Sidecars: []string{name}, Rate: 20, DryRun: true}
	s.others = testkit.Load{Clients: clients, Namespace: s.namespace, Labels: testkit.AppLabels("other"), Rate: 5, DryRun: true}
	return s
}

// run creates Pods, some of which are selected, during a fault.
func (s *scene) run(ctx context.Context, fault func()) (selected, others testkit.Figures) {
	first, second := s.selected.Start(ctx), s.others.Start(ctx)
	fault()
	return first.Stop(), second.Stop()
}

// change changes what is to be injected.
func (s *scene) change(t *testing.T) {
	t.Helper()
	s.version++
	await.Eventually(t, "a change of SidecarSet "+s.name, s.tryChange)
}

func (s *scene) tryChange(ctx context.Context) error { return changeImage(ctx, s.name, s.image()) }

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

// Whatever happens between replicas and the API server, Pods get the content that the
// replicas have seen before. After the fault, Pods get the changed content. Leaders may
// lose their Lease, and are started again.
func TestFaultsOfTheConnectionChangeNoDecision(t *testing.T) {
	proxy, flags := startProxy(t)
	s := newScene(t, "connection", flags...)
	// again does something every half a second, for as long as a fault lasts.
	lasting := testkit.Scaled(1500*time.Millisecond, 15*time.Second)
	again := func(do func()) {
		for end := time.Now().Add(lasting); time.Now().Before(end); <-time.After(500 * time.Millisecond) {
			do()
		}
	}
	faults := []struct {
		name  string
		fault fault
		do    func()
	}{
		{"every request takes half a second longer", late(500 * time.Millisecond), func() {}},
		{"one request of three fails", failing(), func() {}},
		{"every watch is cut twice a second", nil, proxy.cutWatches},
		{"every connection is cut twice a second", nil, proxy.server.CloseClientConnections},
	}
	for _, tc := range faults {
		t.Run(tc.name, func(t *testing.T) {
			s.lostLeases = 0
			selected, others := s.run(t.Context(), func() {
				if tc.fault != nil {
					proxy.impose(tc.fault)
				}
				again(tc.do)
			})
			s.change(t)
			proxy.lift()
			recovery := s.recover(t)
			testkit.Report(t, "lost-leases=%d recovery=%s selected: %s others: %s", s.lostLeases, testkit.Rounded(recovery), &selected, &others)
			check(t, selected)
			check(t, others)
		})
	}
}

// The API server that the operator uses is killed and started again. Pods that are created
// through the other API server are not affected.
func TestAnAPIServerMayBeRestarted(t *testing.T) {
	s := newScene(t, "apiserver")
	s.selected.Clients, s.others.Clients = clients[1:], clients[1:]
	for i := range testkit.Scaled(1, 5) {
		selected, others := s.run(t.Context(), func() {
			if err := cluster.Kill(t.Context(), "kube-apiserver-1"); err != nil {
				t.Error(err)
			}
			<-time.After(testkit.Scaled(time.Second, 10*time.Second))
			if err := cluster.Restart(t.Context(), "kube-apiserver-1"); err != nil {
				t.Fatal(err)
			}
		})
		s.change(t)
		recovery := s.recover(t)
		testkit.Report(t, "round=%d lost-leases=%d recovery=%s selected: %s others: %s", i, s.lostLeases, testkit.Rounded(recovery), &selected, &others)
		check(t, selected)
		check(t, others)
	}
}

// While etcd hangs, no Pod can be created. Pods that are created before and after are
// right, and no user has to do anything.
func TestEtcdMayHang(t *testing.T) {
	s := newScene(t, "etcd")
	for _, load := range []*testkit.Load{&s.selected, &s.others} {
		load.DryRun = false
		load.Patience = time.Minute
	}
	hang := testkit.Scaled(4*time.Second, 10*time.Second)
	selected, others := s.run(t.Context(), func() {
		if err := cluster.Signal(t.Context(), "etcd", syscall.SIGSTOP); err != nil {
			t.Error(err)
		}
		<-time.After(hang)
		if err := cluster.Signal(t.Context(), "etcd", syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	})
	s.change(t)
	recovery := s.recover(t)
	after, othersAfter := s.run(t.Context(), func() { <-time.After(2 * time.Second) })
	testkit.Report(t, "hang=%s lost-leases=%d recovery=%s during: %s after: %s", hang, s.lostLeases, testkit.Rounded(recovery), &selected, &after)
	if selected.Uninjected+others.Uninjected > 0 {
		t.Errorf("Pods were not as they had to be: %s; %s", &selected, &others)
	}
	check(t, after)
	check(t, othersAfter)
}
