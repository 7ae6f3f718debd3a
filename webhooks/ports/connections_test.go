package ports

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

// served is a server with Connections. A request for the path /wait has a seat until leave
// is closed.
type served struct {
	*httptest.Server
	connections *Connections
	leave       chan struct{}
}

func serve(t *testing.T, most, perClient int) *served {
	t.Helper()
	s := &served{connections: NewConnections(most, perClient), leave: make(chan struct{})}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		connection := ConnectionOf(r.Context())
		connection.Enter()
		defer connection.Leave()
		if r.URL.Path == "/wait" {
			_, _ = io.WriteString(w, " ")
			_ = http.NewResponseController(w).Flush()
			<-s.leave
		}
	}))
	s.connections.Bound(s.Config)
	s.Start()
	t.Cleanup(func() { close(s.leave); s.Close() })
	return s
}

// dial connects from a loopback address and sends text.
func (s *served) dial(t *testing.T, from, text string) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 5 * time.Second}
	conn, err := dialer.DialContext(t.Context(), "tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn
}

const (
	unfinished = "GET /x HTTP/1.1\r\nHost: x\r\nX-A: "
	waiting    = "GET /wait HTTP/1.1\r\nHost: x\r\n\r\n"
	answered   = "GET /x HTTP/1.1\r\nHost: x\r\n\r\n"
)

// answers reports whether a connection gets an answer to what it has sent.
func answers(t *testing.T, conn net.Conn) bool {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	head := make([]byte, 12)
	_, err := io.ReadFull(conn, head)
	return err == nil && string(head) == "HTTP/1.1 200"
}

// closes reports whether the server closes a connection.
func closes(conn net.Conn) bool {
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	_, err := io.Copy(io.Discard, conn)
	return err == nil || strings.Contains(err.Error(), "reset")
}

// Clients with many busy connections keep out no other client: neither its idle connection
// nor its new ones.
func TestTheGreediestClientLosesConnections(t *testing.T) {
	s := serve(t, 20, 15)
	idle := s.dial(t, "127.0.0.2", answered)
	if !answers(t, idle) {
		t.Fatal("no answer")
	}
	for range 60 {
		s.dial(t, "127.0.0.3", unfinished)
		s.dial(t, "127.0.0.4", unfinished)
	}
	for range 5 {
		if conn := s.dial(t, "127.0.0.2", answered); !answers(t, conn) {
			t.Error("a client with few connections was turned away")
		}
	}
	if _, err := io.WriteString(idle, answered); err != nil {
		t.Error(err)
	}
	_, _ = io.ReadAll(io.LimitReader(idle, 1))
	if got := s.connections.Count(); got > 20 {
		t.Errorf("%d connections are open", got)
	}
	if s.connections.Evicted() < 90 {
		t.Errorf("%d connections were closed", s.connections.Evicted())
	}
}

// Of the connections of one address, one whose request has had a seat stays open longer
// than the others: an API server may share its address with other clients.
func TestProvenConnectionsOutliveOthers(t *testing.T) {
	s := serve(t, 20, 5)
	proven := s.dial(t, "127.0.0.2", answered)
	if !answers(t, proven) {
		t.Fatal("no answer")
	}
	var strangers []net.Conn
	for range 10 {
		strangers = append(strangers, s.dial(t, "127.0.0.2", unfinished))
	}
	for _, conn := range strangers[:6] {
		if !closes(conn) {
			t.Error("the oldest of too many is open")
		}
	}
	_, _ = io.WriteString(proven, answered)
	rest := make([]byte, 4096)
	_ = proven.SetReadDeadline(time.Now().Add(10 * time.Second))
	for answersSeen := 0; answersSeen < 1; {
		n, err := proven.Read(rest)
		if err != nil {
			t.Fatalf("the proven connection: %v", err)
		}
		answersSeen += strings.Count(string(rest[:n]), "HTTP/1.1 200")
	}
}

// A connection whose request has a seat is never closed. If all have one, the newest
// connection is closed.
func TestConnectionsWhoseRequestHasASeatStayOpen(t *testing.T) {
	s := serve(t, 3, 3)
	var busy []net.Conn
	for range 3 {
		conn := s.dial(t, "127.0.0.2", waiting)
		if !answers(t, conn) {
			t.Fatal("no answer")
		}
		busy = append(busy, conn)
	}
	if conn := s.dial(t, "127.0.0.2", ""); !closes(conn) {
		t.Error("one too many is open")
	}
	if got := s.connections.Count(); got != len(busy) {
		t.Errorf("%d are open", got)
	}
}

// If as many clients as there may be connections have one connection each, they keep out no
// new client: not while they are idle, and not while a request of one of them has a seat.
func TestIdleClientsWithOneConnectionEachKeepOutNoNewOne(t *testing.T) {
	s := serve(t, 10, 5)
	busy := s.dial(t, "127.0.0.2", waiting)
	if !answers(t, busy) {
		t.Fatal("no answer")
	}
	for i := range 40 {
		if conn := s.dial(t, fmt.Sprintf("127.0.1.%d", i+1), answered); !answers(t, conn) {
			t.Fatalf("client %d was turned away", i)
		}
	}
	if got := s.connections.Count(); got != 10 {
		t.Errorf("%d are open", got)
	}
	if got := s.connections.Evicted(); got != 31 {
		t.Errorf("%d connections were closed, want 31", got)
	}
	_ = busy.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := io.Copy(io.Discard, busy); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection with a place: %v", err)
	}
}
