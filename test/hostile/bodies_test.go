package hostile

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
	"github.com/sidecarset/operator/test/unauthenticated"
)

const (
	// halfOfLimit is half of the container's memory limit.
	halfOfLimit = 512 << 20
	// maxMemory is resident in a replica at most while bodies arrive that do not end. 30 MiB are pages of the program. Live are
	// 10 MiB of an idle process, 39 MiB of large bodies (the sum of Limits.Large), and 40 MiB for the buffers and TLS of 224
	// connections. The heap may grow to one and a half times that before it is collected (GOGC=50, as in the Deployment).
	maxMemory = 192 << 20
	// atATime is how many senders send the same body at the same time.
	atATime = 7
	// handshakeTime is less than each time that the server waits for a client: for a handshake
	// and a header, or for anything else. If a request fails later than that, the busy machine
	// may be the reason and not the attack.
	handshakeTime = 3 * time.Second
)

var webhookPaths = []string{"/pods", "/mutate-apps-kruise-io-sidecarset", "/validate-apps-kruise-io-sidecarset", "/convert"}

// Some bodies need much memory when they are decoded. Seven at a time, again and again, keep
// the process below half of its memory limit, and a Pod that is sent meanwhile is answered.
func TestHostileBodies(t *testing.T) {
	operator.NeedReplicas(t)
	replica := operator.StartSpare(t)
	client, other := replica.Trusting(t, unauthenticated.Address(0)), replica.Trusting(t, "")
	namespace := apply(t, "hostile-bodies")
	await.Eventually(t, "a snapshot that selects the Pod", func(ctx context.Context) error {
		return replica.Injects(ctx, "hostile-bodies", namespace, testkit.AppLabels("hostile-bodies"))
	})
	good := unauthenticated.PodReview(namespace, `{"metadata":{"name":"p","labels":{"app":"hostile-bodies"}},"spec":{"containers":[]}}`)
	for _, b := range unauthenticated.Bodies() {
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
func sendFor(t *testing.T, span time.Duration, client *http.Client, b unauthenticated.Body, beside func()) map[int]int {
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

// isAnswered sends the review of a Pod, and fails the test unless it is injected. It tries
// again if the server asks for it. TestUnauthenticatedClientOnTheNetwork sends Pods through API servers.
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
