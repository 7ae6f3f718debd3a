package chaos

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

// sample is what the metrics of a replica say about its process.
type sample struct{ goroutines, bytes float64 }

// Pods and SidecarSets are created and deleted for a while, SOAK says for how long. The
// replicas' goroutines and memory do not grow with time.
func TestGoroutinesAndMemoryStayFlat(t *testing.T) {
	lasting := 20 * time.Second
	if text := os.Getenv("SOAK"); text != "" {
		var err error
		if lasting, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	replicas := startReplicas(t, 2, patientLeases...)
	token := metricsToken(t, replicas)
	namespace := newNamespace(t)
	applySidecarSet(t, namespace, "soak")
	awaitInjection(t, replicas, namespace, "soak", 1)

	load := testkit.Load{Clients: clients, Namespace: namespace, Labels: testkit.AppLabels("soak"), Sidecars: []string{"soak"}, Rate: 20, DryRun: true}
	running := load.Start(t.Context())
	behind := watchMisses(t)
	samples := make([][]sample, len(replicas.replicas))
	for begin, round := time.Now(), 0; time.Since(begin) < lasting; round++ {
		churn(t, namespace, round, behind)
		for i, replica := range replicas.replicas {
			if !replica.Running() {
				t.Fatalf("%s has ended", replica.Name)
			}
			now, err := measure(t.Context(), replica, token)
			if err != nil {
				t.Fatal(err)
			}
			samples[i] = append(samples[i], now)
		}
	}
	figures := running.Stop()
	check(t, figures)
	behind.check(t)
	for i, replica := range replicas.replicas {
		first, last := thirds(samples[i])
		testkit.Report(t, "%s lasting=%s samples=%d goroutines %.0f -> %.0f memory %.1f MiB -> %.1f MiB; %s", replica.Name, lasting,
			len(samples[i]), first.goroutines, last.goroutines, first.bytes/(1<<20), last.bytes/(1<<20), &figures)
		// Load needs connections, and memory grows until the first garbage collections.
		// More than one further goroutine in four rounds is a leak.
		rounds := float64(len(samples[i])) * 2 / 3
		if grown := last.goroutines - first.goroutines; grown > 50+rounds/4 {
			t.Errorf("%s has %.0f more goroutines than in the beginning", replica.Name, grown)
		}
		if grown := last.bytes - first.bytes; grown > 32<<20+rounds*(50<<10) {
			t.Errorf("%s has %.1f MiB more than in the beginning", replica.Name, grown/(1<<20))
		}
	}
}

// churn creates a SidecarSet and then a Pod, changes them, and deletes them.
func churn(t *testing.T, namespace string, round int, pods *missCounter) {
	t.Helper()
	name := fmt.Sprintf("churn-%d", round)
	how, err := create(t.Context(), sets[0], testkit.NewPatientSet(name, namespace))
	if err != nil {
		t.Fatal(err)
	}
	pod, err := clients[0].CoreV1().Pods(namespace).Create(t.Context(), testkit.NewPod(testkit.AppLabels(name)), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pods.add(pod, how, name)
	mustChangeImage(t, name, "example.com/sidecar:v2")
	if err := clients[0].CoreV1().Pods(namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		t.Fatal(err)
	}
	if err := deleteSet(t.Context(), name); err != nil {
		t.Fatal(err)
	}
}

// thirds returns the medians of the first and of the last third.
func thirds(samples []sample) (first, last sample) {
	third := max(len(samples)/3, 1)
	return median(samples[:third]), median(samples[len(samples)-third:])
}

func median(samples []sample) sample {
	pick := func(field func(sample) float64) float64 {
		var values []float64
		for _, s := range samples {
			values = append(values, field(s))
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	return sample{pick(func(s sample) float64 { return s.goroutines }), pick(func(s sample) float64 { return s.bytes })}
}

// metricsToken returns a token of a ServiceAccount that may read the metrics of replicas.
func metricsToken(t *testing.T, f *fleet) string {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{GenerateName: "reader-", Namespace: "default"}}
	account, err := clients[0].CoreV1().ServiceAccounts("default").Create(t.Context(), account, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: account.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "sidecarset-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: account.Namespace, Name: account.Name}},
	}
	if _, err := clients[0].RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token := strings.TrimSpace(testkit.Kubectl(t, cluster, "", "-n", account.Namespace, "create", "token", account.Name, "--duration=24h"))
	for _, replica := range f.replicas {
		await.Eventually(t, "the metrics of "+replica.Name, func(ctx context.Context) error { // API servers learn of roles from watches, with a delay
			_, err := scrape(ctx, replica, token)
			return err
		})
	}
	return token
}

// measure reads a replica's metrics.
func measure(ctx context.Context, replica *deploy.Replica, token string) (sample, error) {
	text, err := scrape(ctx, replica, token)
	if err != nil {
		return sample{}, err
	}
	goroutines, err := testkit.SumOf(text, "go_goroutines")
	if err != nil {
		return sample{}, err
	}
	bytes, err := testkit.SumOf(text, "process_resident_memory_bytes")
	return sample{goroutines, bytes}, err
}

// scrape returns a replica's metrics.
func scrape(ctx context.Context, replica *deploy.Replica, token string) (string, error) {
	trusting, err := replica.Client(ctx)
	if err != nil {
		return "", err
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: trusting.Transport.(*http.Transport).TLSClientConfig, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, replica.Metrics+"/metrics", nil)
	if err != nil {
		return "", err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("reading the metrics of %s: %s, %w", replica.Name, response.Status, err)
	}
	return string(text), nil
}

// metric is testkit.SumOf. A value that cannot be read fails the test.
func metric(t *testing.T, text, name string, parts ...string) float64 {
	t.Helper()
	sum, err := testkit.SumOf(text, name, parts...)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}
