// Package ports knows how to listen on ports to which any Pod of the cluster can connect.
// Its servers bound what a client takes before it has proven who it is: connections,
// headers, time, and requests to the API server. It knows nothing about webhooks, Pods
// and SidecarSets.
package ports

import (
	"context"
	"crypto/tls"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Connections bounds the open connections of a server, of all clients together and of
// each client address. If there is one too many, it closes one of the address that has
// the most. So a client keeps out only itself: an API server has few connections.
//
// Of the connections of an address, it first closes one whose requests never got a seat,
// the oldest first. Then it closes the one whose last request with a seat was answered the
// longest ago. It never closes a connection whose request has a seat. If a request of every
// connection has a seat, it closes the new connection.
//
// If several addresses have the most, it chooses among all their connections. So strangers
// at very many addresses who send no request do not keep out a new client, which sends its
// request at once.
type Connections struct {
	most, perClient int
	evicted         atomic.Int64

	mu      sync.Mutex
	open    map[net.Conn]*Connection
	clients map[netip.Addr]int
}

// Connection is one open connection.
type Connection struct {
	conn   net.Conn
	client netip.Addr
	of     *Connections

	// Guarded by of.mu.
	seats  int  // the number of requests that have one
	served bool // some request has had one
	since  time.Time
}

// NewConnections returns bounds for one server.
func NewConnections(most, perClient int) *Connections {
	return &Connections{most: most, perClient: perClient, open: map[net.Conn]*Connection{}, clients: map[netip.Addr]int{}}
}

// Bound makes server keep within the bounds. Call it before the server serves.
func (c *Connections) Bound(server *http.Server) {
	server.ConnContext = c.opened
	server.ConnState = func(conn net.Conn, state http.ConnState) {
		if state == http.StateClosed || state == http.StateHijacked {
			c.closed(conn)
		}
	}
}

// Count is the number of open connections.
func (c *Connections) Count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open)
}

// Evicted is how many connections were closed because there were too many.
func (c *Connections) Evicted() int64 { return c.evicted.Load() }

type connectionKey struct{}

// ConnectionOf returns the connection of a request; nil if its server has no
// Connections. The methods of a nil Connection do nothing.
func ConnectionOf(ctx context.Context) *Connection {
	connection, _ := ctx.Value(connectionKey{}).(*Connection)
	return connection
}

// Client is the address that the connection comes from.
func (c *Connection) Client() netip.Addr {
	if c == nil {
		return netip.Addr{}
	}
	return c.client
}

// Enter says that a request of the connection has a seat.
func (c *Connection) Enter() {
	if c == nil {
		return
	}
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.seats++
	c.served = true
}

// Leave says that the request has been answered.
func (c *Connection) Leave() {
	if c == nil {
		return
	}
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.seats--
	c.since = time.Now()
}

// opened is the server's ConnContext.
func (c *Connections) opened(ctx context.Context, conn net.Conn) context.Context {
	connection := &Connection{conn: conn, client: clientOf(conn.RemoteAddr()), of: c, since: time.Now()}
	c.mu.Lock()
	c.open[conn] = connection
	c.clients[connection.client]++
	victim := c.excess(connection)
	if victim != nil {
		c.forget(victim)
	}
	c.mu.Unlock()
	if victim != nil {
		c.evicted.Add(1)
		closeNow(victim.conn)
	}
	return context.WithValue(ctx, connectionKey{}, connection)
}

func (c *Connections) closed(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if connection := c.open[conn]; connection != nil {
		c.forget(connection)
	}
}

func (c *Connections) forget(connection *Connection) {
	delete(c.open, connection.conn)
	if c.clients[connection.client]--; c.clients[connection.client] == 0 {
		delete(c.clients, connection.client)
	}
}

// excess is the connection to close; nil if there are not too many.
func (c *Connections) excess(newest *Connection) *Connection {
	var loses func(netip.Addr) bool
	switch {
	case c.clients[newest.client] > c.perClient:
		loses = func(client netip.Addr) bool { return client == newest.client }
	case len(c.open) > c.most:
		most := slices.Max(slices.Collect(maps.Values(c.clients)))
		loses = func(client netip.Addr) bool { return c.clients[client] == most }
	default:
		return nil
	}
	victim := newest
	for _, connection := range c.open {
		if connection != newest && connection.seats == 0 && loses(connection.client) && (victim == newest || connection.before(victim)) {
			victim = connection
		}
	}
	return victim
}

// before reports whether c is closed before other.
func (c *Connection) before(other *Connection) bool {
	if c.served != other.served {
		return other.served
	}
	return c.since.Before(other.since)
}

// clientOf is the address without the port.
func clientOf(address net.Addr) netip.Addr {
	if tcp, ok := address.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// closeNow closes without a TLS alert, which the peer might not read.
func closeNow(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	_ = conn.Close() // it is closed either way
}
