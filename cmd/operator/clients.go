package operator

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
)

// clientsAge is the shortest time between two reads of the file of clientCAs.
const clientsAge = 5 * time.Second

// clientCAs are the CAs of the clients that a server answers, from a PEM file that may
// change. It is safe for concurrent use.
type clientCAs struct {
	path string
	log  logr.Logger

	mu   sync.Mutex
	read time.Time
	last []byte // content of the file at the last read, valid or not
	pool *x509.CertPool
}

// newClientCAs reads the file.
func newClientCAs(path string, log logr.Logger) (*clientCAs, error) {
	c := &clientCAs{path: path, log: log}
	if err := c.load(); err != nil {
		return nil, err
	}
	return c, nil
}

// Pool returns the CAs of the file as it is now, or was a few seconds ago. If the file
// is invalid, Pool returns the CAs from before, and the log has the reason.
func (c *clientCAs) Pool() *x509.CertPool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.read) >= clientsAge {
		if err := c.load(); err != nil {
			c.log.Info("Failed to read the CAs of clients; the previous ones stay in use", "reason", err.Error())
		}
	}
	return c.pool
}

func (c *clientCAs) load() error {
	c.read = time.Now()
	content, err := os.ReadFile(c.path)
	if err != nil {
		return fmt.Errorf("reading the CAs of clients: %w", err)
	}
	if c.last != nil && bytes.Equal(content, c.last) {
		return nil
	}
	c.last = content
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(content) {
		return fmt.Errorf("reading the CAs of clients: %s holds no certificate in PEM form", c.path)
	}
	c.pool = pool
	return nil
}
