package server

import (
	"log"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr"
)

// Listener bounds the open connections of a server: of all clients together, and of each client
// address. At a bound, a new connection is closed. So a client that opens many keeps out no other
// client, and read deadlines end those that bring no request.
type Listener struct {
	net.Listener
	most, perClient int
	refused         atomic.Int64

	mu      sync.Mutex
	open    int
	clients map[netip.Addr]int
}

// Limit bounds the connections that a listener accepts.
func Limit(listener net.Listener, most, perClient int) *Listener {
	return &Listener{Listener: listener, most: most, perClient: perClient, clients: map[netip.Addr]int{}}
}

// conn is one open connection.
type conn struct {
	net.Conn
	leave func()
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		var client netip.Addr
		if tcp, ok := accepted.RemoteAddr().(*net.TCPAddr); ok {
			client = tcp.AddrPort().Addr().Unmap()
		}
		if l.enter(client) {
			return &conn{accepted, sync.OnceFunc(func() { l.left(client) })}, nil
		}
		l.refused.Add(1)
		_ = accepted.Close() // it is closed either way
	}
}

func (l *Listener) enter(client netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= l.most || l.clients[client] >= l.perClient {
		return false
	}
	l.open++
	l.clients[client]++
	return true
}

func (l *Listener) left(client netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.clients[client]--; l.clients[client] == 0 {
		delete(l.clients, client)
	}
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.leave()
	return c.Conn.Close()
}

func (l *Listener) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// ErrorLog takes the lines that net/http logs: mostly failed handshakes of port scanners and probes.
func ErrorLog(logger logr.Logger) *log.Logger { return log.New(lineLogger{logger.V(1)}, "", 0) }

type lineLogger struct{ logr.Logger }

func (l lineLogger) Write(line []byte) (int, error) {
	l.Info("Connection failed", "reason", string(line))
	return len(line), nil
}
