package plane

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/sidecarset/operator/test/controlplane/internal/pki"
)

// client is the small client of the Kubernetes API that the launcher itself needs.
type client struct {
	http *http.Client
}

func newClient(authority *pki.Authority, user pki.Pair) (*client, error) {
	cert, err := tls.LoadX509KeyPair(user.CertFile, user.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("reading the administrator's certificate: %w", err)
	}
	return &client{&http.Client{
		Timeout: 10 * time.Second,
		Transport: &http.Transport{
			TLSClientConfig:     &tls.Config{RootCAs: authority.Pool(), Certificates: []tls.Certificate{cert}},
			MaxIdleConnsPerHost: 8,
		},
	}}, nil
}

// get reads an object into out, or only asks for success when out is nil.
func (c *client) get(ctx context.Context, url string, out any) error {
	body, status, err := c.do(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("GET %s: %d: %.300s", url, status, body)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(body, out)
}

// create posts an object.
func (c *client) create(ctx context.Context, url string, object any) error {
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	body, status, err := c.do(ctx, http.MethodPost, url, text)
	if err != nil {
		return err
	}
	if status != http.StatusCreated {
		return fmt.Errorf("POST %s: %d: %.300s", url, status, body)
	}
	return nil
}

func (c *client) do(ctx context.Context, method, url string, body []byte) ([]byte, int, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return text, resp.StatusCode, err
}

// final is an error that does not change if the request is repeated.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// poll calls probe again and again until it succeeds, its error is final, or ctx ends. It returns
// the last error.
func poll(ctx context.Context, probe func(context.Context) error) error {
	ticks := time.NewTicker(50 * time.Millisecond)
	defer ticks.Stop()
	for {
		err := probe(ctx)
		if err == nil || errors.As(err, new(final)) {
			return err
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return fmt.Errorf("%w; the last answer was: %w", context.Cause(ctx), err)
		}
	}
}
