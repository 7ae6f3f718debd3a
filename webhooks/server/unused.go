package server

import (
	"net"
	"sync"
	"time"
)

// unusedListener lets a client open a connection before it needs it. net/http gives the
// first request of a connection the time of a header, from the end of the handshake, and
// a later one the time of an idle connection. API servers open connections in advance and
// keep them for 90 s. A request that is sent while the server closes its connection fails,
// and API servers do not send it again. So both kinds of connections are idle for equally
// long, and the time of a header begins with its first byte.
type unusedListener struct {
	net.Listener
	idle, header time.Duration
}

// Accept implements net.Listener.
func (l unusedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &unusedConn{Conn: conn, idle: l.idle, header: l.header}, nil
}

// unusedConn is below TLS. net/http sets a deadline for the handshake, removes it, and
// sets that of the first header: this one is put off until something is read.
type unusedConn struct {
	net.Conn
	idle, header time.Duration

	mu   sync.Mutex
	step connStep
}

type connStep int

const (
	inHandshake connStep = iota
	afterHandshake
	unused
	used
)

// SetReadDeadline implements net.Conn.
func (c *unusedConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.step == inHandshake && t.IsZero():
		c.step = afterHandshake
	case c.step == afterHandshake:
		c.step = unused
		t = time.Now().Add(c.idle)
	}
	return c.Conn.SetReadDeadline(t)
}

// Read implements net.Conn.
func (c *unusedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.step == unused {
			c.step = used
			if err == nil {
				err = c.Conn.SetReadDeadline(time.Now().Add(c.header))
			}
		}
	}
	return n, err
}
