package chaos

import (
	"fmt"
	"testing"
	"time"

	"github.com/sidecarset/operator/test/testkit"
)

// First one replica loses its API server, then all replicas do: their watches end, and no request
// is answered. They continue injecting the Pods of a SidecarSet that does not change, and stay ready,
// however long this lasts. When they reach the API server again, a change is injected.
func TestReplicasWithoutTheirAPIServerGoOn(t *testing.T) {
	startControllers(t, 1)
	var proxies []*proxy
	all := &fleet{}
	for i := range 2 {
		p, flags := startProxy(t)
		f := startFleet(t, &fleet{args: append(flags, "--role=webhook"), serving: true}, 1+i, 1)
		proxies, all.replicas = append(proxies, p), append(all.replicas, f.replicas[0])
	}
	awaitCalls(t)
	namespace := newNamespace(t)
	applySidecarSet(t, namespace, "cutoff")
	testkit.AwaitReady(t, api, "cutoff")
	awaitInjection(t, all, namespace, "cutoff", 5)

	unready := watchReadiness(t, all.replicas)
	load := testkit.Load{Clients: clients, Namespace: namespace, Labels: testkit.AppLabels("cutoff"), Sidecars: []string{"cutoff"}, Rate: 20, DryRun: true}
	for _, cut := range []struct {
		name    string
		proxies []*proxy
	}{{"one of two replicas", proxies[:1]}, {"all replicas", proxies}} {
		running := load.Start(t.Context())
		for _, p := range cut.proxies {
			p.impose(p.silent)
			p.cutWatches()
		}
		<-time.After(testkit.Scaled(8*time.Second, 2*time.Minute))
		figures := running.Stop()
		for _, p := range cut.proxies {
			p.lift()
		}
		began := time.Now()
		image := fmt.Sprintf("example.com/sidecar:after-%d", len(cut.proxies))
		mustChangeImage(t, "cutoff", image)
		awaitImage(t, namespace, "cutoff", image)
		testkit.Report(t, "%s without an API server: %s; a change is injected %s after the end", cut.name, &figures, testkit.Rounded(time.Since(began)))
		check(t, figures)
		testkit.AwaitReady(t, api, "cutoff")
	}
	unready()
}
