package hostile

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/unauthenticated"
)

const (
	// maxMemory is resident in a replica under attack at most. 30 MiB are pages of the program. Live are 10 MiB of an idle
	// process, 39 MiB of large bodies (the sum of Limits.Large), and 40 MiB for the buffers and TLS of 224 connections. The
	// heap may grow to one and a half times that before it is collected (GOGC=50, as in the Deployment).
	maxMemory   = 192 << 20
	maxLifetime = 3 * time.Minute // of a connection: the server ends it after 10 s, on a busy machine later
	attackers   = 56              // on every path at the same time; with the few connections of good requests, fewer than one address may have
)

var webhookPaths = []string{"/pods", "/mutate-apps-kruise-io-sidecarset", "/validate-apps-kruise-io-sidecarset", "/convert"}

// malformed is something that no API server sends.
type malformed struct {
	name string
	head string                           // without the request line and Host
	send func(context.Context, io.Writer) // the rest
	want []int                            // allowed answers; 0 is none

	// flood is whether the attackers keep the processors so busy that many attackers, but
	// not all, may get no answer: a handshake takes too long, or the connection is reset
	// while they are still sending.
	flood bool
}

// repeat writes size bytes, as fast as the server reads them.
func repeat(size int, chunk string, frame bool) func(context.Context, io.Writer) {
	block := strings.Repeat(chunk, 64<<10/len(chunk))
	if frame {
		block = fmt.Sprintf("%x\r\n%s\r\n", len(block), block)
	}
	return func(ctx context.Context, w io.Writer) {
		for sent := 0; sent < size && ctx.Err() == nil; sent += len(block) {
			if _, err := io.WriteString(w, block); err != nil {
				return
			}
		}
	}
}

func whole(text string) func(context.Context, io.Writer) {
	return func(_ context.Context, w io.Writer) { _, _ = io.WriteString(w, text) }
}

func inputs() []malformed {
	const ofJSON, chunked = "Content-Type: application/json\r\n", "Transfer-Encoding: chunked\r\n\r\n"
	sized := func(size int) string { return ofJSON + "Content-Length: " + strconv.Itoa(size) + "\r\n\r\n" }
	deep := `{"deep":` + strings.Repeat(`[`, 20_000) + strings.Repeat(`]`, 20_000) + `}`
	const huge = 256 << 20
	return []malformed{
		{name: "256 MiB in chunks", head: ofJSON + chunked, send: repeat(huge, " ", true), want: []int{413, 429}, flood: true},
		{name: "a string of 256 MiB in chunks", head: ofJSON + chunked + "2\r\n{\"\r\n", send: repeat(huge, "x", true), want: []int{413, 429}, flood: true},
		{name: "7 MiB of lists", head: sized(7 << 20), send: func(ctx context.Context, w io.Writer) {
			_, _ = io.WriteString(w, "[")
			repeat(7<<20, "[],", false)(ctx, w)
		}, want: []int{400, 413, 429}, flood: true},
		{name: "20,000 lists in one another", head: sized(len(deep)), send: whole(deep), want: []int{400}},
	}
}

// Bodies that do not end, or are deep, cost a replica little memory, on whatever path they come. The tests of webhooks/server show
// the answers to what is no review. No other test uses this replica.
func TestHostileInput(t *testing.T) {
	operator.NeedReplicas(t)
	replica := operator.StartSpare(t)
	config := replica.Trusting(t, "").Transport.(*http.Transport).TLSClientConfig
	t.Logf("resident before: %d MiB", replica.Memory(t, "VmRSS")>>20)
	for _, a := range inputs() {
		t.Run(a.name, func(t *testing.T) {
			replica.ForgetPeak(t)
			a.run(t, replica, config)
			if peak := replica.Memory(t, "VmHWM"); peak > maxMemory {
				t.Errorf("%d MiB were resident", peak>>20)
			}
			t.Logf("resident at most: %d MiB, after that: %d MiB", replica.Memory(t, "VmHWM")>>20, replica.Memory(t, "VmRSS")>>20)
			answersWell(t, replica)
		})
	}
}

// run sends the attack from all attackers on all paths at the same time, and a
// good request in between.
func (a malformed) run(t *testing.T, replica *deploy.Replica, config *tls.Config) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[int]int{}
	for _, path := range webhookPaths {
		for range attackers {
			wg.Go(func() {
				status, late, lived, err := a.once(t.Context(), replica.Webhook, path, config)
				mu.Lock()
				defer mu.Unlock()
				seen[status]++
				wanted := slices.Contains(a.want, status) || (a.flood || late) && status <= 0
				if status > 0 && err != nil || lived > maxLifetime || !wanted {
					t.Errorf("%s: status %d after %v, want %v: %v", path, status, lived, a.want, err)
				}
			})
		}
	}
	wg.Wait()
	t.Logf("answers by status: %v", seen)
	if total, none := len(webhookPaths)*attackers, seen[0]+seen[-1]; a.flood && none == total {
		t.Errorf("none of %d got an answer", total)
	}
}

// once is one attacker: it returns the status of the answer, whether the handshake took
// longer than the server may wait for it, and how long the connection lived. The status
// is 0 if there was no answer and -1 if there was no connection, and the error says why.
func (a malformed) once(ctx context.Context, address, path string, config *tls.Config) (status int, late bool, lived time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*maxLifetime)
	defer cancel()
	began := time.Now()
	raw, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", address)
	begin := time.Now()
	late = begin.Sub(began) > handshakeTime
	if err != nil {
		return -1, late, 0, fmt.Errorf("connecting: %w", err)
	}
	defer raw.Close()
	_ = raw.SetDeadline(begin.Add(2 * maxLifetime))
	go func() {
		if _, err := io.WriteString(raw, "POST "+path+" HTTP/1.1\r\nHost: webhook\r\n"+a.head); err == nil {
			a.send(ctx, raw)
		}
	}()
	reader := bufio.NewReader(raw)
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		return 0, late, time.Since(begin), err // closed without an answer
	}
	status = response.StatusCode
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return status, late, time.Since(begin), fmt.Errorf("reading the answer: %w", err)
	}
	_, _ = io.Copy(io.Discard, reader) // until the server closes or resets the connection
	return status, late, time.Since(begin), nil
}

// answersWell waits until a good request is answered on each path, because the requests of an
// attack may take a while to end.
func answersWell(t *testing.T, replica *deploy.Replica) {
	t.Helper()
	good := unauthenticated.PodReview("default", `{"metadata":{"name":"p"},"spec":{"containers":[]}}`)
	sidecarSet := `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u-1","kind":{"group":"apps.kruise.io","version":"v1beta1","kind":"SidecarSet"},` +
		`"resource":{"group":"apps.kruise.io","version":"v1beta1","resource":"sidecarsets"},"operation":"CREATE","name":"s","object":` +
		`{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","metadata":{"name":"s"},"spec":{"selector":{"matchLabels":{"a":"b"}},"containers":[{"name":"c","image":"i"}]}}}}`
	conversion := `{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1","request":{"uid":"u-1","desiredAPIVersion":"apps.kruise.io/v1alpha1","objects":[` +
		`{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","metadata":{"name":"s"}}]}}`
	for path, body := range map[string]string{webhookPaths[0]: good, webhookPaths[1]: sidecarSet, webhookPaths[2]: sidecarSet, webhookPaths[3]: conversion} {
		httpClient := replica.Trusting(t, "")
		await.Eventually(t, "the answer to a good request for "+path, func(context.Context) error {
			response, err := httpClient.Post("https://"+deploy.ServerName+path, "application/json", strings.NewReader(body))
			if err != nil {
				return err
			}
			defer response.Body.Close()
			answer, err := io.ReadAll(response.Body)
			if err == nil && (response.StatusCode != http.StatusOK || !strings.Contains(string(answer), `"uid":"u-1"`)) {
				err = fmt.Errorf("%d %s", response.StatusCode, answer)
			}
			return err
		})
	}
}
