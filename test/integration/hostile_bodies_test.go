package integration

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stranger"
	"github.com/sidecarset/operator/test/testkit"
)

const (
	// halfOfLimit is half of the container's memory limit.
	halfOfLimit = 512 << 20
	// atATime is how many senders send the same body at the same time.
	atATime = 7
	// handshakeTime is less than each time that the server waits for a client: for a handshake
	// and a header, or for anything else. If a request fails later than that, the busy machine
	// may be the reason and not the attack.
	handshakeTime = 3 * time.Second
)

// Some bodies need much memory when they are decoded. Seven at a time, again and again, keep
// the process below half of its memory limit, and a Pod that is sent meanwhile is answered.
func TestHostileBodies(t *testing.T) {
	operator.NeedReplicas(t)
	replica := startSpare(t)
	client, other := trustingFrom(t, replica, stranger.Address(0)), trusting(t, replica)
	good := injectedBy(t, replica)
	for _, b := range stranger.Bodies() {
		t.Run(b.Name, func(t *testing.T) {
			replica.ForgetPeak(t)
			statuses := sendFor(t, 400*time.Millisecond, client, b, func() { isAnswered(t, other, good) })
			peak := replica.Memory(t, "VmHWM")
			t.Logf("%d bytes: answers by status %v, resident at most %d MiB", len(b.Body), statuses, peak>>20)
			if peak > halfOfLimit {
				t.Errorf("%d MiB were resident", peak>>20)
			}
		})
	}
	answersWell(t, replica)
}

// sendFor sends a body, atATime of them at a time, and calls beside meanwhile.
func sendFor(t *testing.T, span time.Duration, client *http.Client, b stranger.Body, beside func()) map[int]int {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), span)
	defer stop()
	var mu sync.Mutex
	statuses := map[int]int{}
	var wg sync.WaitGroup
	for range atATime {
		wg.Go(func() {
			for first := true; first || ctx.Err() == nil; first = false {
				response, err := client.Post("https://"+deploy.ServerName+b.Path, "application/json", strings.NewReader(b.Body))
				status := 0
				if err == nil {
					_, _ = io.Copy(io.Discard, response.Body)
					_ = response.Body.Close()
					status = response.StatusCode
				}
				mu.Lock()
				statuses[status]++
				mu.Unlock()
			}
		})
	}
	for ctx.Err() == nil {
		beside()
	}
	wg.Wait()
	return statuses
}

// injectedBy returns the review of a Pod that a SidecarSet selects, once a replica injects
// it.
func injectedBy(t *testing.T, replica *deploy.Replica) (body string) {
	t.Helper()
	namespace := testkit.Namespace(t, api, nil)
	set := createSidecarSet(t, namespace, fullSet)
	await.Eventually(t, "a snapshot that selects the Pod", func(ctx context.Context) error {
		return replica.Injects(ctx, set.GetName(), namespace, map[string]string{"app": "web"})
	})
	return strings.ReplaceAll(review(`{"metadata":{"name":"p","labels":{"app":"web"}},"spec":{"containers":[]}}`), "NS", namespace)
}

// isAnswered sends the review of a Pod, and fails the test unless it is injected. It tries
// again if the server asks for it. How soon the answer must come is the law of test/chaos,
// whose Pods go through an API server.
func isAnswered(t *testing.T, client *http.Client, good string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	for {
		began := time.Now()
		tryAgain := func() bool { return ctx.Err() == nil && time.Since(began) > handshakeTime }
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+deploy.ServerName+"/pods", strings.NewReader(good))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		response, err := client.Do(request)
		if err != nil && tryAgain() {
			continue
		}
		if err != nil {
			t.Errorf("a good request beside it, after %v: %v", time.Since(began), err)
			return
		}
		answer, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err == nil && response.StatusCode == http.StatusOK && bytes.Contains(answer, []byte(`"patch":`)) {
			return
		}
		if response.StatusCode != http.StatusTooManyRequests && !tryAgain() {
			t.Errorf("a good request beside it got %d %s %v", response.StatusCode, answer, err)
			return
		}
		select {
		case <-ctx.Done():
			t.Error("a good request beside it was turned away for too long")
			return
		case <-time.After(time.Second): // as Retry-After says
		}
	}
}

// A thousand headers that do not end, of a megabyte each, again and again at each port.
func TestUnfinishedHeaders(t *testing.T) {
	operator.NeedReplicas(t)
	replica := startSpare(t)
	good := injectedBy(t, replica)
	secure := trusting(t, replica).Transport.(*http.Transport).TLSClientConfig
	for port, address := range map[string]string{
		"webhook": replica.Webhook, "metrics": strings.TrimPrefix(replica.Metrics, "https://"), "probes": strings.TrimPrefix(replica.Probes, "http://"),
	} {
		t.Run(port, func(t *testing.T) {
			replica.ForgetPeak(t)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var wg sync.WaitGroup
			for i := range 1000 {
				wg.Go(func() {
					config := secure
					if port == "probes" {
						config = nil
					}
					for first := true; first || ctx.Err() == nil; first = false {
						stranger.Unfinished(t.Context(), address, stranger.Address(i%4), config)
					}
				})
			}
			isAnswered(t, trusting(t, replica), good)
			await.Eventually(t, "readiness meanwhile", replica.Ready)
			stop()
			wg.Wait()
			peak := replica.Memory(t, "VmHWM")
			t.Logf("resident at most %d MiB", peak>>20)
			if peak > halfOfLimit {
				t.Errorf("%d MiB were resident", peak>>20)
			}
		})
	}
}

// Attackers open many connections and keep a request open on each: more than one address may
// have, and more than all addresses may have together. No review of a Pod waits, neither on
// a new connection, nor on an older one from an attacker's own address.
func TestBusyConnections(t *testing.T) {
	operator.NeedReplicas(t)
	replica := startSpare(t)
	good := injectedBy(t, replica)
	replica.ForgetPeak(t)
	secure := trusting(t, replica).Transport.(*http.Transport).TLSClientConfig.Clone()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	kept := trustingFrom(t, replica, stranger.Address(0))
	isAnswered(t, kept, good)
	for i := range 2800 {
		wg.Go(func() {
			for ctx.Err() == nil {
				stranger.KeepBusy(ctx, replica.Webhook, stranger.Address(i%4), secure)
			}
		})
	}
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		isAnswered(t, kept, good)
		fresh := trusting(t, replica)
		isAnswered(t, fresh, good)
		fresh.CloseIdleConnections()
		await.Eventually(t, "readiness meanwhile", replica.Ready)
	}
	stop()
	wg.Wait()
	peak := replica.Memory(t, "VmHWM")
	t.Logf("resident at most %d MiB", peak>>20)
	if peak > halfOfLimit {
		t.Errorf("%d MiB were resident", peak>>20)
	}
}

// trustingFrom is trusting; its connections come from an address.
func trustingFrom(t *testing.T, replica *deploy.Replica, address string) *http.Client {
	t.Helper()
	client := trusting(t, replica)
	client.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return stranger.Dialer(address).DialContext(ctx, network, replica.Webhook)
	}
	return client
}
