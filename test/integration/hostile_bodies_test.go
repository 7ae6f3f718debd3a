package integration

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
)

const (
	// halfOfLimit is half of what the container may take.
	halfOfLimit = 512 << 20
	// atATime is how many send the same body at the same time.
	atATime = 7
	// podTimeout is how long API servers wait for the answer about a selected Pod.
	podTimeout = 5 * time.Second
)

// hostileBody is well-formed, small for what it becomes, and sent as a whole.
type hostileBody struct{ name, path, body string }

// many is a JSON list of one element, of some size in bytes.
func many(element string, size int) string {
	return "[" + strings.Repeat(element+",", size/(len(element)+1)) + element + "]"
}

func sidecarSetWith(spec string) string {
	return `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u-1","kind":{"group":"apps.kruise.io","version":"v1beta1","kind":"SidecarSet"},` +
		`"resource":{"group":"apps.kruise.io","version":"v1beta1","resource":"sidecarsets"},"operation":"CREATE","name":"s","dryRun":true,"userInfo":{"username":"u"},"object":` +
		`{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","metadata":{"name":"s"},"spec":` + spec + `}}}`
}

func members(size int, value string) string {
	var b strings.Builder
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, `"%x":%s,`, i, value)
	}
	return strings.TrimSuffix(b.String(), ",")
}

func hostileBodies() []hostileBody {
	const mutate, validate, pods, convert = "/mutate-apps-kruise-io-sidecarset", "/validate-apps-kruise-io-sidecarset", "/pods", "/convert"
	pod := func(pod string) string { return strings.ReplaceAll(review(pod), "NS", "default") }
	list := func(objects string) string {
		return `{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1","request":{"uid":"u-1","desiredAPIVersion":"apps.kruise.io/v1alpha1","objects":` + objects + `}}`
	}
	hashes := strings.ReplaceAll(members(3<<20, `""`), `"`, `\"`)
	container := `{"ports":` + many(`{}`, 3*95) + `}`
	return []hostileBody{
		{"1 MiB of empty containers", mutate, sidecarSetWith(`{"containers":` + many(`{}`, 1<<20) + `}`)},
		{"3 MiB of empty containers", mutate, sidecarSetWith(`{"containers":` + many(`{}`, 3<<20) + `}`)},
		{"1 MiB of empty volumes", mutate, sidecarSetWith(`{"volumes":` + many(`{}`, 1<<20) + `}`)},
		{"3 MiB of empty containers to the validator", validate, sidecarSetWith(`{"containers":` + many(`{}`, 3<<20) + `}`)},
		{"as many ports as pass", mutate, sidecarSetWith(`{"containers":` + many(container, 990*(len(container)+1)) + `}`)},
		{"as many wrong ports as pass", validate, sidecarSetWith(`{"containers":` + many(container, 990*(len(container)+1)) + `}`)},
		{"7 MiB of labels of a SidecarSet", mutate, sidecarSetWith(`{"selector":{"matchLabels":{` + members(6<<20, `""`) + `}}}`)},
		{"7 MiB of one string of a SidecarSet", mutate, sidecarSetWith(`{"selector":{"matchLabels":{"a":"` + strings.Repeat("x", 6<<20) + `"}}}`)},
		{"7 MiB of labels of a Pod", pods, pod(`{"metadata":{"name":"p","labels":{` + members(6<<20, `""`) + `}},"spec":{"containers":[]}}`)},
		{"7 MiB of empty containers of a Pod", pods, pod(`{"metadata":{"name":"p"},"spec":{"containers":` + many(`{}`, 6<<20) + `}}`)},
		{"3 MiB of hashes of a Pod", pods, pod(`{"metadata":{"name":"p","annotations":{"kruise.io/sidecarset-hash":"{` + hashes + `}"}},"spec":{"containers":[]}}`)},
		{"6 MiB of a list in a Pod's annotation", pods, pod(`{"metadata":{"name":"p","annotations":{"kruise.io/sidecarset-injected-list":"` + strings.Repeat("a,", 3<<20) + `"}},"spec":{"containers":[]}}`)},
		{"270,000 tiny objects", convert, list(many(`{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet"}`, 15<<20))},
		{"650,000 tiny objects", convert, list(many(`{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet"}`, 650_000*59))},
		{"5 million empty objects", convert, list(many(`{}`, 15<<20))},
		{"one object of 15 MiB", convert, list(`[{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","metadata":{"labels":{` + members(15<<20, `""`) + `}}}]`)},
		{"1,500 objects of 10 KB", convert, list(many(`{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","spec":{"x":"`+strings.Repeat("x", 10<<10)+`"}}`, 1500*10<<10))},
	}
}

// Bodies that become much are bounded by that: seven at a time, again and again
// for some seconds, keep the process below half of its limit, and a Pod that is
// sent meanwhile is answered in time.
func TestHostileBodies(t *testing.T) {
	operator.NeedReplicas(t)
	replica := startSpare(t)
	client, other := trustingFrom(t, replica, attackerAddress(0)), trusting(t, replica)
	for _, b := range hostileBodies() {
		t.Run(b.name, func(t *testing.T) {
			forgetPeak(t, replica)
			statuses := sendFor(t, 2*time.Second, client, b, func() { answersInTime(t, other) })
			peak := memoryOf(t, replica, "VmHWM")
			t.Logf("%d bytes: answers by status %v, resident at most %d MiB", len(b.body), statuses, peak>>20)
			if peak > halfOfLimit {
				t.Errorf("%d MiB were resident", peak>>20)
			}
		})
	}
	answersWell(t, replica)
}

// sendFor sends a body, atATime of them at a time, and calls beside meanwhile.
func sendFor(t *testing.T, span time.Duration, client *http.Client, b hostileBody, beside func()) map[int]int {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), span)
	defer stop()
	var mu sync.Mutex
	statuses := map[int]int{}
	var wg sync.WaitGroup
	for range atATime {
		wg.Go(func() {
			for first := true; first || ctx.Err() == nil; first = false {
				response, err := client.Post("https://"+deploy.ServerName+b.path, "application/json", strings.NewReader(b.body))
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

// answersInTime asks about a Pod as an API server does, which tries again where
// it is told to.
func answersInTime(t *testing.T, client *http.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), podTimeout)
	defer cancel()
	good := strings.ReplaceAll(review(`{"metadata":{"name":"p","labels":{"app":"web"}},"spec":{"containers":[]}}`), "NS", "default")
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+deploy.ServerName+"/pods", strings.NewReader(good))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		response, err := client.Do(request)
		if err != nil {
			t.Errorf("a good request beside it: %v", err)
			return
		}
		answer, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err == nil && response.StatusCode == http.StatusOK && bytes.Contains(answer, []byte(`"uid":"u-1"`)) {
			return
		}
		if response.StatusCode != http.StatusTooManyRequests {
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

// A thousand headers that do not end, of a megabyte each, at each port.
func TestUnfinishedHeaders(t *testing.T) {
	operator.NeedReplicas(t)
	replica := startSpare(t)
	secure := trusting(t, replica).Transport.(*http.Transport).TLSClientConfig
	for port, address := range map[string]string{
		"webhook": replica.Webhook, "metrics": strings.TrimPrefix(replica.Metrics, "https://"), "probes": strings.TrimPrefix(replica.Probes, "http://"),
	} {
		t.Run(port, func(t *testing.T) {
			forgetPeak(t, replica)
			var wg sync.WaitGroup
			for i := range 1000 {
				wg.Go(func() {
					var conn net.Conn
					var err error
					dialer := dialerFrom(attackerAddress(i % 4))
					if port == "probes" {
						conn, err = dialer.DialContext(t.Context(), "tcp", address)
					} else {
						conn, err = (&tls.Dialer{NetDialer: dialer, Config: secure}).DialContext(t.Context(), "tcp", address)
					}
					if err != nil {
						return // turned away
					}
					defer conn.Close()
					_ = conn.SetDeadline(time.Now().Add(2 * podTimeout))
					if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n"); err != nil {
						return
					}
					for range 259 {
						if _, err := io.WriteString(conn, "X-A: "+strings.Repeat("a", 4000)+"\r\n"); err != nil {
							return
						}
					}
					_, _ = io.Copy(io.Discard, conn)
				})
			}
			answersInTime(t, trusting(t, replica))
			if err := replica.Ready(t.Context()); err != nil {
				t.Errorf("readiness meanwhile: %v", err)
			}
			wg.Wait()
			peak := memoryOf(t, replica, "VmHWM")
			t.Logf("resident at most %d MiB", peak>>20)
			if peak > halfOfLimit {
				t.Errorf("%d MiB were resident", peak>>20)
			}
		})
	}
}

// Connections of some Pods that each keep a request open, of HTTP/1.1 and, where
// it is offered, of HTTP/2, keep no Pod waiting: neither one that comes by a new
// connection, nor one that comes by a connection that was used before, from the
// attackers' own address.
func TestBusyConnections(t *testing.T) {
	operator.NeedReplicas(t)
	for protocol, args := range map[string][]string{"http/1.1": nil, "h2": {"--pod-webhook-url=https://127.0.0.1:9443"}} {
		t.Run(protocol, func(t *testing.T) {
			replica := startSpare(t, args...)
			forgetPeak(t, replica)
			secure := trusting(t, replica).Transport.(*http.Transport).TLSClientConfig.Clone()
			secure.NextProtos = []string{protocol}
			ctx, stop := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			var spoken sync.Map
			kept := trustingFrom(t, replica, attackerAddress(0))
			answersInTime(t, kept)
			for i := range 1000 {
				wg.Go(func() {
					for ctx.Err() == nil {
						if got := keepBusy(ctx, replica.Webhook, attackerAddress(i%4), secure); got != "" {
							spoken.Store(got, true)
						}
					}
				})
			}
			for end := time.Now().Add(6 * time.Second); time.Now().Before(end); {
				answersInTime(t, kept)
				fresh := trusting(t, replica)
				answersInTime(t, fresh)
				fresh.CloseIdleConnections()
				if err := replica.Ready(t.Context()); err != nil {
					t.Errorf("readiness meanwhile: %v", err)
				}
			}
			stop()
			wg.Wait()
			var protocols []string
			spoken.Range(func(key, _ any) bool { protocols = append(protocols, key.(string)); return true })
			if protocol == "h2" && !slices.Contains(protocols, "h2") {
				t.Errorf("spoke %q", protocols)
			}
			peak := memoryOf(t, replica, "VmHWM")
			t.Logf("spoke %q, resident at most %d MiB", protocols, peak>>20)
			if peak > halfOfLimit {
				t.Errorf("%d MiB were resident", peak>>20)
			}
		})
	}
}

// keepBusy opens a connection that begins one request, or a new stream every
// second, and never ends one, until it is closed.
func keepBusy(ctx context.Context, address, from string, config *tls.Config) string {
	raw, err := (&tls.Dialer{NetDialer: dialerFrom(from), Config: config}).DialContext(ctx, "tcp", address)
	if err != nil {
		return ""
	}
	conn := raw.(*tls.Conn)
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	protocol := conn.ConnectionState().NegotiatedProtocol
	if protocol != "h2" {
		_, _ = io.WriteString(conn, "POST /pods HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
		_, _ = io.Copy(io.Discard, conn)
		return protocol
	}
	go func() {
		ticks := time.NewTicker(time.Second)
		defer ticks.Stop()
		frames := append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 0, 0, 0, 4, 0, 0, 0, 0, 0) // an empty SETTINGS frame
		for stream := uint32(1); ; stream += 2 {
			if _, err := conn.Write(append(frames, unfinishedStream(stream)...)); err != nil {
				return
			}
			frames = nil
			select {
			case <-ctx.Done():
				return
			case <-ticks.C:
			}
		}
	}()
	_, _ = io.Copy(io.Discard, conn)
	return protocol
}

// attackerAddress is one that no replica and no API server has.
func attackerAddress(n int) string {
	if stand.Namespace() {
		return stand.Address(12 + n)
	}
	return fmt.Sprintf("127.0.0.%d", 12+n)
}

func dialerFrom(address string) *net.Dialer {
	return &net.Dialer{Timeout: podTimeout, LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
}

// trustingFrom is trusting, from an address.
func trustingFrom(t *testing.T, replica *deploy.Replica, address string) *http.Client {
	t.Helper()
	client := trusting(t, replica)
	client.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return dialerFrom(address).DialContext(ctx, network, replica.Webhook)
	}
	return client
}

// unfinishedStream is a HEADERS frame of POST /pods, behind which DATA would have
// to follow.
func unfinishedStream(stream uint32) []byte {
	literal := func(name, value string) []byte { // without indexing, without Huffman's code
		return append(append([]byte{0, byte(len(name))}, name...), append([]byte{byte(len(value))}, value...)...)
	}
	block := []byte{0x83, 0x87} // :method POST, :scheme https
	for _, header := range [][2]string{{":path", "/pods"}, {":authority", "x"}, {"content-type", "application/json"}} {
		block = append(block, literal(header[0], header[1])...)
	}
	head := []byte{0, byte(len(block) >> 8), byte(len(block)), 1, 4, byte(stream >> 24), byte(stream >> 16), byte(stream >> 8), byte(stream)}
	return append(head, block...)
}
