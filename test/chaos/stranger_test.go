package chaos

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/stranger"
	"github.com/sidecarset/operator/test/testkit"
)

// A stranger on the network does all that a Pod of the cluster can do to the
// ports: bodies that become much, headers and bodies that do not end, connections
// that stay busy. Selected Pods are injected meanwhile, SidecarSets are converted,
// replicas stay ready and below half of their memory. What forged reviews do to
// webhook entries is in TestForgedReviewsLeaveFewEntries.
func TestStrangerOnTheNetwork(t *testing.T) {
	stand.NeedNamespace(t)
	f := startReplicas(t, 2, steadyLeases...)
	namespace := newNamespace(t)
	const name = "visited"
	createSets(t, []*unstructured.Unstructured{newSet(name, namespace, podLabels(name))}) // with the default timeout
	testkit.AwaitReady(t, api, name)
	awaitInjected(t, namespace, name, 3)

	span := scaled(4*time.Second, 30*time.Second)
	for _, attack := range attacks(t, f) {
		t.Run(attack.name, func(t *testing.T) {
			for _, replica := range f.replicas {
				replica.ForgetPeak(t)
			}
			ctx, stop := context.WithTimeout(t.Context(), span)
			defer stop()
			var attackers sync.WaitGroup
			for i := range attack.count {
				attackers.Go(func() {
					for ctx.Err() == nil {
						attack.send(ctx, i)
					}
				})
			}
			load := Load{Clients: clients, Namespace: namespace, Labels: podLabels(name), Sidecars: []string{name}, Rate: 5, DryRun: true}.Start(t.Context())
			conversions, unready := convertMeanwhile(ctx, f, name)
			figures := load.Stop()
			attackers.Wait()
			peak := 0
			for _, replica := range f.replicas {
				peak = max(peak, replica.Memory(t, "VmHWM"))
			}
			report(t, "pods=%d refused=%d uninjected=%d conversions=%s unready=%d peak=%dMiB", figures.Created+figures.Failed, figures.Failed, figures.Uninjected, conversions, unready, peak>>20)
			if figures.Failed > 0 || figures.Uninjected > 0 || figures.Created == 0 {
				t.Errorf("%d of %d Pods were refused, %d not injected: %v", figures.Failed, figures.Created+figures.Failed, figures.Uninjected, figures.Errors)
			}
			if conversions.failed > 0 || unready > 0 {
				t.Errorf("%d conversions failed (%v), replicas were %d times not ready", conversions.failed, conversions.last, unready)
			}
			const half = 512 << 20
			if peak > half {
				t.Errorf("%d MiB were resident", peak>>20)
			}
		})
	}
}

// attack is what so many strangers send again and again.
type attack struct {
	name  string
	count int
	send  func(ctx context.Context, i int)
}

func attacks(t *testing.T, f *fleet) []attack {
	t.Helper()
	target := func(i int) *deploy.Replica { return f.replicas[i%len(f.replicas)] }
	senders := map[*deploy.Replica]*http.Client{}
	var config *tls.Config
	for i, replica := range f.replicas {
		client, err := replica.Client(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		transport := client.Transport.(*http.Transport)
		config = transport.TLSClientConfig
		dialer := stranger.Dialer(stranger.Address(i))
		address := replica.Webhook
		transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, address)
		}
		t.Cleanup(transport.CloseIdleConnections)
		senders[replica] = client
	}
	bodies := stranger.Bodies()
	var next atomic.Int64
	return []attack{
		{"bodies that become much", 14, func(ctx context.Context, i int) {
			body := bodies[int(next.Add(1))%len(bodies)]
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+deploy.ServerName+body.Path, strings.NewReader(body.Body))
			if err != nil {
				return
			}
			request.Header.Set("Content-Type", "application/json")
			if response, err := senders[target(i)].Do(request); err == nil {
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
			}
		}},
		{"bodies that stall", 240, func(ctx context.Context, i int) {
			stranger.Stall(ctx, target(i).Webhook, stranger.Address(i%4), []string{"/convert", "/pods"}[i/2%2], 270<<10, config)
		}},
		{"headers that do not end", 3000, func(ctx context.Context, i int) {
			switch replica := target(i); i / 2 % 3 {
			case 0:
				stranger.Unfinished(ctx, replica.Webhook, stranger.Address(i%4), config)
			case 1:
				stranger.Unfinished(ctx, strings.TrimPrefix(replica.Metrics, "https://"), stranger.Address(i%4), config)
			default:
				stranger.Unfinished(ctx, strings.TrimPrefix(replica.Probes, "http://"), stranger.Address(i%4), nil)
			}
		}},
		{"busy connections", 1000, func(ctx context.Context, i int) {
			stranger.KeepBusy(ctx, target(i).Webhook, stranger.Address(i%4), config)
		}},
	}
}

// outcome is how conversions went.
type outcome struct {
	made, failed int
	last         error
	slowest      time.Duration // conversion
	probe        time.Duration // of both replicas, one after the other
}

// String is in the form that figures are reported in.
func (o outcome) String() string {
	return fmt.Sprintf("%d/%d slowest=%v probe=%v", o.made-o.failed, o.made, o.slowest.Round(time.Millisecond), o.probe.Round(time.Millisecond))
}

// convertMeanwhile reads a SidecarSet as v1alpha1, and asks replicas whether they
// are ready, until ctx ends.
func convertMeanwhile(ctx context.Context, f *fleet, name string) (conversions outcome, unready int) {
	live := context.WithoutCancel(ctx)
	for i := 0; ctx.Err() == nil; i++ {
		conversions.made++
		begin := time.Now()
		if err := convert(live, clients[i%len(clients)], name); err != nil {
			conversions.failed++
			conversions.last = err
		}
		conversions.slowest = max(conversions.slowest, time.Since(begin))
		begin = time.Now()
		for _, replica := range f.replicas {
			if replica.Ready(live) != nil {
				unready++
			}
		}
		conversions.probe = max(conversions.probe, time.Since(begin))
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
	return conversions, unready
}
