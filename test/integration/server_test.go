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

// scrape asks for metrics with a token, or with none, and returns the status: 0 if there is no answer, because on a
// busy machine a handshake may take longer than a replica waits. trusted is a replica that serves the certificate.
func scrape(t *testing.T, trusted *deploy.Replica, url, token string) (code int) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	httpClient := &http.Client{Transport: &http.Transport{TLSClientConfig: trusted.Trusting(t, "").Transport.(*http.Transport).TLSClientConfig}}
	response, err := httpClient.Do(request)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode == http.StatusOK && !strings.Contains(string(body), "\nsidecarset_build_info{") {
		t.Errorf("no metric sidecarset_build_info in %d bytes", len(body))
	}
	return response.StatusCode
}

// tokenOf returns a token of a new ServiceAccount.
func tokenOf(t *testing.T, namespace, name string) string {
	t.Helper()
	create(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
	return strings.TrimSpace(testkit.Kubectl(t, cluster, "", "-n", namespace, "create", "token", name))
}

func TestMetricsAreForAuthorizedClients(t *testing.T) {
	namespace := testkit.Namespace(t, api, nil)
	scraper := tokenOf(t, namespace, "scraper")
	testkit.Kubectl(t, cluster, "", "create", "clusterrolebinding", "scraper-"+namespace, "--clusterrole=sidecarset-metrics-reader", "--serviceaccount="+namespace+":scraper")
	for _, tc := range []struct {
		token string
		want  int
	}{{"", http.StatusUnauthorized}, {tokenOf(t, namespace, "nobody"), http.StatusForbidden}, {scraper, http.StatusOK}} {
		// A replica checks at most one unknown token of an address in a second.
		await.Eventually(t, fmt.Sprint("status ", tc.want), func(context.Context) error {
			if got := scrape(t, replicas[0], replicas[0].Metrics, tc.token); got != tc.want {
				return fmt.Errorf("status %d", got)
			}
			return nil
		})
	}
}
