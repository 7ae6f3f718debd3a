package integration

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

func TestMetricsAreForAuthorizedClients(t *testing.T) {
	get := func(token string) int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, replicas[0].Metrics+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		httpClient := &http.Client{Transport: &http.Transport{TLSClientConfig: replicas[0].Trusting(t, "").Transport.(*http.Transport).TLSClientConfig}}
		response, err := httpClient.Do(request)
		if err != nil {
			return 0 // on a busy machine, a handshake may take longer than a replica waits
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		for _, metric := range []string{"\nsidecarset_build_info{", "\nleader_election_master_status{name=\"" + deploy.Lease + "\"}"} {
			if response.StatusCode == http.StatusOK && !strings.Contains(string(body), metric) {
				t.Errorf("no metric %q in %d bytes", metric, len(body))
			}
		}
		return response.StatusCode
	}
	namespace := testkit.Namespace(t, api, nil)
	tokenOf := func(name string) string {
		create(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
		token, err := cluster.Kubectl(t.Context(), "", "-n", namespace, "create", "token", name)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(token)
	}
	// A replica checks at most one unknown token of an address in a second.
	expect := func(token string, want int) {
		t.Helper()
		await.Eventually(t, fmt.Sprint("status ", want), func(context.Context) error {
			if got := get(token); got != want {
				return fmt.Errorf("status %d", got)
			}
			return nil
		})
	}
	expect("", http.StatusUnauthorized)
	expect(tokenOf("nobody"), http.StatusForbidden)
	token := tokenOf("scraper")
	if _, err := cluster.Kubectl(t.Context(), "", "create", "clusterrolebinding", "scraper-"+namespace,
		"--clusterrole=sidecarset-metrics-reader", "--serviceaccount="+namespace+":scraper"); err != nil {
		t.Fatal(err)
	}
	await.Eventually(t, "the right", func(ctx context.Context) error {
		_, err := cluster.Kubectl(ctx, "", "auth", "can-i", "get", "/metrics", "--as=system:serviceaccount:"+namespace+":scraper")
		return err
	})
	expect(token, http.StatusOK)
}
