package webhooks

import (
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// connections bounds how many connections are open. One too many takes the place
// of the one that has been waiting for a request for the longest time: a client
// that sends nothing keeps nobody out. Where all are busy the new one is closed.
type connections struct {
	most    int
	evicted atomic.Int64

	mu   sync.Mutex
	open map[net.Conn]time.Time // when it began to wait; zero while it has a request
}

func newConnections(most int) *connections {
	return &connections{most: most, open: map[net.Conn]time.Time{}}
}

// observe is the server's ConnState.
func (c *connections) observe(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		c.open[conn] = time.Now()
		if len(c.open) > c.most {
			c.evict(conn)
		}
	case http.StateIdle:
		c.open[conn] = time.Now()
	case http.StateActive:
		c.open[conn] = time.Time{}
	case http.StateClosed, http.StateHijacked:
		delete(c.open, conn)
	}
}

func (c *connections) evict(newest net.Conn) {
	oldest := newest
	for conn, since := range c.open {
		if !since.IsZero() && since.Before(c.open[oldest]) {
			oldest = conn
		}
	}
	delete(c.open, oldest)
	c.evicted.Add(1)
	closeNow(oldest)
}

// closeNow does not wait for a peer to take our farewell.
func closeNow(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	_ = conn.Close() // it is closed either way
}

// count is how many are open.
func (c *connections) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open)
}
