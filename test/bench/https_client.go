package bench

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// InFlight is how many requests wait for an answer at any moment.
const InFlight = 16

// client calls one site as an API server calls a Service: with the client of
// net/http, which writes a body in records of 4 KiB, over HTTP/1.1 and TLS 1.3,
// on connections that it keeps.
type client struct {
	address   string
	transport *http.Transport
}

func newClient(site Greeting) (*client, error) {
	ca, err := x509.ParseCertificate(site.CA)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	return &client{site.Address, &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13},
		MaxConnsPerHost: InFlight, MaxIdleConnsPerHost: InFlight,
	}}, nil
}

func (c *client) close() { c.transport.CloseIdleConnections() }

// load is the request body, and the size of the answer of a static site.
type load struct {
	body []byte
	size int
}

// send keeps requests in flight until end, and returns how many were answered.
func (c *client) send(ctx context.Context, what load, end time.Time) (int, error) {
	var answered atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for range InFlight {
		group.Go(func() error {
			for time.Now().Before(end) {
				if _, err := c.exchange(ctx, what, io.Discard); err != nil {
					return err
				}
				answered.Add(1)
			}
			return nil
		})
	}
	err := group.Wait()
	return int(answered.Load()), err
}

// exchange sends one request and copies the body of its answer.
func (c *client) exchange(ctx context.Context, what load, into io.Writer) (length int64, err error) {
	url := fmt.Sprintf("https://%s/%d?timeout=10s", c.address, what.size)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(what.body))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := c.transport.RoundTrip(request)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("the answer is %s", response.Status)
	}
	return io.Copy(into, response.Body)
}
