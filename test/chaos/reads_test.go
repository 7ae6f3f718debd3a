package chaos

import (
	"context"
	"fmt"
	"net/http"
	"path"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// A Pod that is created directly after its SidecarSet, or after a change of it, is injected.
// It does not matter through which API server each of them is written. For such a Pod the
// replica reads objects by name at most, and lists none. Once the replica knows the SidecarSet,
// its Pods cost no read.
//
// API servers call a replica that does not lead. So what it reads is for them.
func TestAPodBehindItsSidecarSetNeedsNoList(t *testing.T) {
	publishAPIServers(t) // so that the operator waits for both
	leader := startReplicas(t, 1, steadyLeases...)
	leader.awaitLeader(t)
	proxy, flags := startProxy(t)
	startFleet(t, &fleet{args: append(flags, steadyLeases...), serving: true}, 2, 1)
	if err := operator.RemoveEndpoint(t.Context(), leader.replicas[0]); err != nil {
		t.Fatal(err)
	}
	awaitCalls(t)
	awaitOnly(t) // what an earlier test left behind takes the room of SidecarSets that are being admitted
	reads := countReads(proxy)
	namespace := newNamespace(t)
	pods := watchMisses(t)
	lists, byName := 0, 0
	behind := func(create func()) {
		listsBefore, byNameBefore := reads.count()
		create()
		listed, read := reads.count()
		lists, byName = lists+listed-listsBefore, byName+read-byNameBefore
	}
	var last string
	for i := range 8 {
		last = fmt.Sprintf("behind-%d", i)
		deleteAfter(t, last)
		how, err := create(t.Context(), sets[i%len(sets)], testkit.NewPatientSet(last, namespace))
		if err != nil {
			t.Fatal(err)
		}
		behind(func() {
			for through := range clients {
				pod, err := clients[through].CoreV1().Pods(namespace).Create(t.Context(), testkit.NewPod(testkit.AppLabels(last)), metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				pods.add(pod, how, last)
			}
		})
		if how.mayMiss() {
			testkit.AwaitReady(t, api, last)
		}
		mustChangeImage(t, last, "example.com/sidecar:v2")
		behind(func() {
			await.Eventually(t, "a Pod with the change", func(ctx context.Context) error {
				return testkit.TryPod(ctx, clients[i%len(clients)], namespace, last, "example.com/sidecar:v2")
			})
		})
	}
	pods.check(t)
	testkit.Report(t, "%s; lists=%d reads-by-name=%d", pods, lists, byName)
	if lists > 0 {
		t.Errorf("the replica listed SidecarSets %d times for Pods", lists)
	}

	testkit.AwaitReady(t, api, last)
	known := func(ctx context.Context) error {
		listsBefore, byNameBefore := reads.count()
		if err := injects(ctx, namespace, last, "example.com/sidecar:v2", 25); err != nil {
			return err
		}
		if listed, read := reads.count(); listed > listsBefore || read > byNameBefore {
			return fmt.Errorf("%d lists and %d reads by name", listed-listsBefore, read-byNameBefore)
		}
		return nil
	}
	await.Eventually(t, "Pods that need no read", known)
	if err := known(t.Context()); err != nil {
		t.Errorf("Pods of a SidecarSet that the replica knows: %v", err)
	}
}

// readCounter counts what replicas read of SidecarSets and of the objects with entries.
type readCounter struct {
	mu            sync.Mutex
	lists, byName int
}

// countReads counts the reads that go through a proxy. A list of one object is not among them:
// with it, a process looks now and then whether etcd was restored.
func countReads(p *proxy) *readCounter {
	c := &readCounter{}
	p.impose(func(_ http.ResponseWriter, r *http.Request) bool {
		query := r.URL.Query()
		if r.Method != http.MethodGet || query.Get("watch") == "true" {
			return false
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		switch kind, name := path.Split(r.URL.Path); {
		case name == "sidecarsets" && query.Get("limit") != "1":
			c.lists++
		case path.Base(kind) == "sidecarsets", strings.HasPrefix(name, "sidecarset-pods-"):
			c.byName++
		}
		return false
	})
	return c
}

func (c *readCounter) count() (lists, byName int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lists, c.byName
}
