package hostile

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

// Unauthenticated clients on the network do all that a Pod of the cluster can do to the ports: they send
// bodies that do not end, bodies that need much memory when they are decoded, calls that make replicas read, headers and
// bodies that do not end, and connections that stay busy. Meanwhile selected Pods are injected, SidecarSets are
// converted, and replicas stay ready and use less than half of their memory limit.
// TestForgedReviewsLeaveFewWebhooks shows what forged reviews do to Pod webhooks.
//
// Unauthenticated clients have a process of their own, as API servers and kubelets have. With thousands of
// unauthenticated clients in this process, a probe took seconds to write its request.
func TestUnauthenticatedClientOnTheNetwork(t *testing.T) {
	stand.NeedNamespace(t)
	const name = "visited"
	namespace := apply(t, name)
	span := testkit.Scaled(4*time.Second, 30*time.Second)
	for _, attack := range attacks {
		t.Run(attack.name, func(t *testing.T) {
			for _, replica := range replicas {
				replica.ForgetPeak(t)
			}
			attackers := startAttack(t, attack)
			ctx, stop := context.WithTimeout(t.Context(), span)
			defer stop()
			load := testkit.Load{Clients: clients, Namespace: namespace, Labels: testkit.AppLabels(name), Sidecars: []string{name}, Rate: 5, DryRun: true}.Start(t.Context())
			conversions, unready := convertMeanwhile(ctx, name)
			figures := load.Stop()
			sent := attackers.stop(t)
			peak := 0
			for _, replica := range replicas {
				peak = max(peak, replica.Memory(t, "VmHWM"))
			}
			testkit.Report(t, "sent=%d pods=%d refused=%d uninjected=%d conversions=%s unready=%d peak=%dMiB", sent, figures.Created+figures.Failed, figures.Failed, figures.Uninjected, conversions, unready, peak>>20)
			if sent == 0 {
				t.Error("no unauthenticated client has begun")
			}
			if figures.Failed > 0 || figures.Uninjected > 0 || figures.Created == 0 {
				t.Errorf("%d of %d Pods were refused, %d not injected: %v", figures.Failed, figures.Created+figures.Failed, figures.Uninjected, figures.Errors)
			}
			if conversions.failed > 0 || unready > 0 {
				t.Errorf("%d conversions failed (%v), replicas were %d times not ready", conversions.failed, conversions.last, unready)
			}
			if peak > attack.memory {
				t.Errorf("%d MiB were resident", peak>>20)
			}
		})
	}
}

// outcome is how conversions went.
type outcome struct {
	made, failed int
	last         error
	slowest      time.Duration // conversion
	probe        time.Duration // slowest probe of both replicas, one after the other
}

// String is in the form that figures are reported in.
func (o outcome) String() string {
	return fmt.Sprintf("%d/%d slowest=%v probe=%v", o.made-o.failed, o.made, o.slowest.Round(time.Millisecond), o.probe.Round(time.Millisecond))
}

// convertMeanwhile reads a SidecarSet as v1alpha1, and asks replicas whether they are ready,
// until ctx ends. As for the kubelet, a replica is not ready if it says so twice in a row
// (failureThreshold in config/manager).
func convertMeanwhile(ctx context.Context, name string) (conversions outcome, unready int) {
	live, failures := context.WithoutCancel(ctx), make([]int, len(replicas))
	for i := 0; ctx.Err() == nil; i++ {
		conversions.made++
		begin := time.Now()
		read := clients[i%len(clients)].CoreV1().RESTClient().Get().AbsPath("/apis/apps.kruise.io/v1alpha1/sidecarsets", name)
		if err := read.Do(live).Error(); err != nil {
			conversions.failed++
			conversions.last = err
		}
		conversions.slowest = max(conversions.slowest, time.Since(begin))
		begin = time.Now()
		for i, replica := range replicas {
			err := replica.Ready(live)
			if err == nil {
				failures[i] = 0
				continue
			}
			if failures[i]++; failures[i] == 2 {
				unready++
			}
			conversions.last = err
		}
		conversions.probe = max(conversions.probe, time.Since(begin))
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
	return conversions, unready
}
