package ports

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// maxScrapes is how many requests for metrics are answered at a time.
const maxScrapes = 4

// Metrics serves /metrics, and no other path, to the clients that access allows.
func Metrics(gatherer prometheus.Gatherer, access *Access) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", access.Guard(promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{
		ErrorHandling:       promhttp.HTTPErrorOnError,
		MaxRequestsInFlight: maxScrapes,
	})))
	return mux
}
