package server

import (
	"net"
	"sync"
	"time"
)

// unusedListener lets a client open a connection before it needs it. net/http counts the
// time of a connection's first request from the end of the handshake, and that of a later
// one from its first byte. API servers open connections in advance and keep them for 90 s.
// A request that is sent while the server closes its connection fails, and API servers do
// not send it again. So both kinds of connections are idle for equally long, and the time
// of each request begins with its first byte.
type unusedListener struct {
	net.Listener
	idle time.Duration // how long a connection may be unused
}

// Accept implements net.Listener.
func (l unusedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &unusedConn{Conn: conn, idle: l.idle}, nil
}

// unusedConn is below TLS. net/http sets a deadline for the handshake and removes it. Then
// it sets the deadlines of the first header and of the first request, both counted from the
// end of the handshake. unusedConn moves both by the time in which no byte came.
type unusedConn struct {
	net.Conn
	idle time.Duration

	mu        sync.Mutex
	step      connStep
	began     time.Time // when the deadline of the first header was set
	header    time.Time // that deadline
	unusedFor time.Duration
}

type connStep int

const (
	inHandshake connStep = iota
	afterHandshake
	unused
	inHeader
	used
)

// SetReadDeadline implements net.Conn.
func (c *unusedConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.step == inHandshake && t.IsZero():
		c.step = afterHandshake
	case c.step == afterHandshake && !t.IsZero():
		c.step, c.began, c.header = unused, time.Now(), t
		t = c.began.Add(c.idle)
	case c.step == unused: // the header came with the end of the handshake
		c.step = used
	case c.step == inHeader:
		c.step = used
		if !t.IsZero() {
			t = t.Add(c.unusedFor)
		}
	}
	return c.Conn.SetReadDeadline(t)
}

// Read implements net.Conn.
func (c *unusedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n == 0 {
		return n, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.step == unused {
		c.step, c.unusedFor = inHeader, time.Since(c.began)
		if err == nil {
			err = c.Conn.SetReadDeadline(c.header.Add(c.unusedFor))
		}
	}
	return n, err
}
