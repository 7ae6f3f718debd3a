// Package prometheus gives the dashboard and the alerts of the chart to Prometheus's own engine. The
// samples are those of replicas on the stand, which get into the troubles that alerts are about.
package prometheus

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

var (
	cluster  *stand.Cluster
	operator *deploy.Operator
	replicas []*deploy.Replica
	api      client.WithWatch
)

func TestMain(m *testing.M) {
	os.Exit(stand.Main(m, stand.Options{Namespace: true}, begin))
}

func begin(ctx context.Context, c *stand.Cluster) (err error) {
	cluster = c
	api, operator, replicas, err = testkit.Begin(ctx, c)
	return err
}

// scraper returns a function that reads the metrics of a replica as Prometheus does: with a
// token of a ServiceAccount that may read them.
func scraper(t *testing.T) func(context.Context, *deploy.Replica) (string, error) {
	t.Helper()
	kubectl := func(args ...string) string { return testkit.Kubectl(t, cluster, "", args...) }
	kubectl("-n", "default", "create", "serviceaccount", "scraper")
	kubectl("create", "clusterrolebinding", "scraper", "--clusterrole=sidecarset-metrics-reader", "--serviceaccount=default:scraper")
	token := strings.TrimSpace(kubectl("-n", "default", "create", "token", "scraper", "--duration=24h"))
	return func(ctx context.Context, replica *deploy.Replica) (string, error) {
		trusting, err := replica.Client(ctx)
		if err != nil {
			return "", err
		}
		defer trusting.CloseIdleConnections()
		scraping := &http.Client{Transport: &http.Transport{TLSClientConfig: trusting.Transport.(*http.Transport).TLSClientConfig, DisableKeepAlives: true}}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, replica.Metrics+"/metrics", nil)
		if err != nil {
			return "", err
		}
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := scraping.Do(request)
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
}

// scrapes are what one look at all replicas has read, by the name of the replica.
type scrapes map[string]string

// inForce reports whether all SidecarSets are. While the leader writes entries anew, they are not.
func (s scrapes) inForce() bool {
	for _, text := range s {
		if notReady.MatchString(text) {
			return false
		}
	}
	return true
}

var notReady = regexp.MustCompile(`(?m)^sidecarset_ready{.*} 0$`)

// recorder reads the metrics of all replicas.
type recorder struct {
	t      *testing.T
	scrape func(context.Context, *deploy.Replica) (string, error)
}

// until reads until the sum of a metric over all replicas is as wanted.
func (r recorder) until(what, metric string, parts []string, wanted func(sum float64, all scrapes) bool) scrapes {
	r.t.Helper()
	var all scrapes
	await.Eventually(r.t, what, func(ctx context.Context) error {
		all = scrapes{}
		var sum float64
		for _, replica := range replicas {
			text, err := r.scrape(ctx, replica)
			if err != nil {
				return err
			}
			n, err := testkit.SumOf(text, metric, parts...)
			if err != nil {
				return err
			}
			all[replica.Name], sum = text, sum+n
		}
		if !wanted(sum, all) {
			return fmt.Errorf("%s%q is %v", metric, parts, sum)
		}
		return nil
	})
	return all
}
