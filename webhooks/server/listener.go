package server

import (
	"container/list"
	"context"
	"crypto/tls"
	"log"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr"
)

// Listener bounds the open connections of a server: of all clients together, and of each client
// address. At a bound, the oldest connection that has not brought a whole request yet gives way: of
// the same address, or of any if there are too many in all. So a client that opens connections and
// sends little keeps out no other client for long. If there is no such connection, the new one is closed.
type Listener struct {
	net.Listener
	most, perClient int
	evicted         atomic.Int64

	mu      sync.Mutex
	open    int
	clients map[netip.Addr]int
	unused  list.List // of *conn, the oldest first
}

// Limit bounds the connections that a listener accepts.
func Limit(listener net.Listener, most, perClient int) *Listener {
	return &Listener{Listener: listener, most: most, perClient: perClient, clients: map[netip.Addr]int{}}
}

// conn is one open connection. Its fields are guarded by the Listener.
type conn struct {
	net.Conn
	of     *Listener
	client netip.Addr
	unused *list.Element // nil once a whole request has come
	closed bool
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: accepted, of: l}
		if tcp, ok := accepted.RemoteAddr().(*net.TCPAddr); ok {
			c.client = tcp.AddrPort().Addr().Unmap()
		}
		victim := l.enter(c)
		if victim != nil {
			l.evicted.Add(1)
			_ = victim.Close() // it is closed either way
		}
		if victim != c {
			return c, nil
		}
	}
}

// enter counts a connection, and returns the one that has to give way; nil if none has.
func (l *Listener) enter(c *conn) (victim *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open++
	l.clients[c.client]++
	own := l.clients[c.client] > l.perClient
	if own || l.open > l.most {
		victim = c
		for e := l.unused.Front(); e != nil; e = e.Next() {
			if oldest := e.Value.(*conn); !own || oldest.client == c.client {
				victim = oldest
				break
			}
		}
	}
	if victim != c {
		c.unused = l.unused.PushBack(c)
	}
	return victim
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.use()
	c.of.mu.Lock()
	if !c.closed {
		c.closed = true
		c.of.open--
		if c.of.clients[c.client]--; c.of.clients[c.client] == 0 {
			delete(c.of.clients, c.client)
		}
	}
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// use notes that a whole request has come.
func (c *conn) use() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if c.unused != nil {
		c.of.unused.Remove(c.unused)
		c.unused = nil
	}
}

func (l *Listener) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

type connKey struct{}

// ConnContext is for an http.Server that serves a Listener, so that ClientOf knows the client.
func ConnContext(ctx context.Context, accepted net.Conn) context.Context {
	if secure, ok := accepted.(*tls.Conn); ok {
		accepted = secure.NetConn()
	}
	return context.WithValue(ctx, connKey{}, accepted)
}

// ClientOf is the address that a request comes from; zero if its server has no ConnContext.
func ClientOf(ctx context.Context) (client netip.Addr) {
	if c, ok := ctx.Value(connKey{}).(*conn); ok {
		client = c.client
	}
	return client
}

// used notes that a whole request has come on its connection.
func used(r *http.Request) {
	if c, ok := r.Context().Value(connKey{}).(*conn); ok {
		c.use()
	}
}

// ErrorLog takes the lines that net/http logs: mostly failed handshakes of port scanners and probes.
func ErrorLog(logger logr.Logger) *log.Logger { return log.New(lineLogger{logger.V(1)}, "", 0) }

type lineLogger struct{ logr.Logger }

func (l lineLogger) Write(line []byte) (int, error) {
	l.Info("Connection failed", "reason", string(line))
	return len(line), nil
}
