package hostile

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/unauthenticated"
)

// clientsVariable is the environment variable of a process of this program that sends an
// attack.
const clientsVariable = "HOSTILE_CLIENTS"

// targets are what unauthenticated clients know: host and port of each replica's servers.
type targets struct {
	Attack                   string
	Webhook, Metrics, Probes []string
}

// attack is one kind of traffic that count unauthenticated clients send again and again.
type attack struct {
	name   string
	count  int
	memory int // that may be resident in a replica
	send   func(ctx context.Context, at targets, i int)
}

// unverified is the configuration of unauthenticated clients: they do not verify the server's certificate.
var unverified = &tls.Config{ServerName: deploy.ServerName, InsecureSkipVerify: true}

var attacks = []attack{
	{"bodies that do not end", 112, maxMemory, sendEndless()}, // the first one: after others, a process may keep more
	{"bodies that become much", 14, halfOfLimit, sendBodies()},
	{"calls that no replica can answer", 56, halfOfLimit, sendUnknown()},
	{"bodies that stall", 1200, halfOfLimit, func(ctx context.Context, at targets, i int) {
		unauthenticated.Stall(ctx, one(at.Webhook, i), unauthenticated.Address(i%4), []string{"/convert", "/pods"}[i/2%2], 270<<10, unverified)
	}},
	{"headers that do not end", 3000, halfOfLimit, func(ctx context.Context, at targets, i int) {
		switch i / 2 % 3 {
		case 0:
			unauthenticated.Unfinished(ctx, one(at.Webhook, i), unauthenticated.Address(i%4), unverified)
		case 1:
			unauthenticated.Unfinished(ctx, one(at.Metrics, i), unauthenticated.Address(i%4), unverified)
		default:
			unauthenticated.Unfinished(ctx, one(at.Probes, i), unauthenticated.Address(i%4), nil)
		}
	}},
	{"busy connections", 3000, halfOfLimit, func(ctx context.Context, at targets, i int) {
		unauthenticated.KeepBusy(ctx, one(at.Webhook, i), unauthenticated.Address(i%4), unverified)
	}},
}

// one returns the address that the i-th unauthenticated client attacks.
func one(addresses []string, i int) string { return addresses[i%len(addresses)] }

// sendEndless has unauthenticated clients send 256 MiB in chunks, on each path for webhooks.
func sendEndless() func(context.Context, targets, int) {
	block := strings.Repeat("{\"x", 16<<10)
	clients := [...]*http.Client{from(unauthenticated.Address(0)), from(unauthenticated.Address(1)), from(unauthenticated.Address(2)), from(unauthenticated.Address(3))}
	return func(ctx context.Context, at targets, i int) {
		body := make([]io.Reader, 256<<20/len(block))
		for i := range body {
			body[i] = strings.NewReader(block)
		}
		post(ctx, clients[i%len(clients)], "https://"+one(at.Webhook, i)+webhookPaths[i/2%len(webhookPaths)], io.MultiReader(body...))
	}
}

// sendBodies has unauthenticated clients send one body after the other over connections that stay
// open.
func sendBodies() func(context.Context, targets, int) {
	bodies := unauthenticated.Bodies()
	clients := [...]*http.Client{from(unauthenticated.Address(0)), from(unauthenticated.Address(1))}
	var next atomic.Int64
	return func(ctx context.Context, at targets, i int) {
		body := bodies[int(next.Add(1))%len(bodies)]
		post(ctx, clients[i%len(clients)], "https://"+one(at.Webhook, i)+body.Path, strings.NewReader(body.Body))
	}
}

// sendUnknown has unauthenticated clients send Pods as if a shard were in a version that is still to come. So the
// replica reads the shard for each of them.
func sendUnknown() func(context.Context, targets, int) {
	review := unauthenticated.PodReview("default", `{"metadata":{"name":"p","labels":{"app":"visited"}},"spec":{"containers":[]}}`)
	clients := [...]*http.Client{from(unauthenticated.Address(0)), from(unauthenticated.Address(1))}
	return func(ctx context.Context, at targets, i int) {
		post(ctx, clients[i%len(clients)], "https://"+one(at.Webhook, i)+podwebhook.PodsPath(i%podwebhook.Shards, math.MaxUint64)+"?timeout=1s", strings.NewReader(review))
	}
}

// post sends a body, and reads the answer.
func post(ctx context.Context, client *http.Client, url string, body io.Reader) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
	if err != nil {
		return
	}
	request.Header.Set("Content-Type", "application/json")
	if response, err := client.Do(request); err == nil {
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
	}
}

// from returns a client whose connections come from an address.
func from(address string) *http.Client {
	return &http.Client{
		Transport: &http.Transport{TLSClientConfig: unverified, DialContext: unauthenticated.Dialer(address).DialContext},
		Timeout:   20 * time.Second,
	}
}

// unauthenticated clients is a process that attacks.
type attackProcess struct{ *stand.Process }

// startAttack starts an attack on the replicas behind the Service.
func startAttack(t *testing.T, attack attack) attackProcess {
	t.Helper()
	at := targets{Attack: attack.name}
	for _, replica := range replicas {
		at.Webhook = append(at.Webhook, replica.Webhook)
		at.Metrics = append(at.Metrics, strings.TrimPrefix(replica.Metrics, "https://"))
		at.Probes = append(at.Probes, strings.TrimPrefix(replica.Probes, "http://"))
	}
	told, err := json.Marshal(at)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := attackProcess{stand.RunProcess(t, stand.Command{Name: "unauthenticated clients", Path: self, Env: []string{clientsVariable + "=" + string(told)}})}
	await.That(t, func() bool { return strings.Contains(s.Log(), begun) }, "unauthenticated clients who attack")
	return s
}

// stop ends the attack, and returns how many times an unauthenticated client has begun to send.
func (s attackProcess) stop(t *testing.T) (sent int) {
	t.Helper()
	s.Stop()
	sent, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(s.Log(), begun)))
	if err != nil {
		t.Errorf("the unauthenticated clients do not say how often they attacked: %v", err)
	}
	return sent
}

// begun is what a process says that attacks.
const begun = "begun"

// attackIfAsked runs the attack if this process is such a process, and then ends it. In other
// processes it returns at once.
func attackIfAsked() {
	told := os.Getenv(clientsVariable)
	if told == "" {
		return
	}
	var at targets
	if err := json.Unmarshal([]byte(told), &at); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var sent atomic.Int64
	for _, attack := range attacks {
		if attack.name != at.Attack {
			continue
		}
		for i := range attack.count {
			go func() {
				for ctx.Err() == nil {
					sent.Add(1)
					attack.send(ctx, at, i)
				}
			}()
		}
	}
	fmt.Println(begun)
	<-ctx.Done() // connections end with the process
	fmt.Println(sent.Load())
	os.Exit(0)
}
