package server_test

import (
	"net"
	"testing"

	"github.com/sidecarset/operator/webhooks/server"
)

// A client at its own bound loses its own oldest connection. The older ones of others stay.
func TestAClientAtItsBoundLosesItsOwnConnection(t *testing.T) {
	loopback, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener := server.Limit(loopback, 100, 2)
	defer listener.Close()
	connect := func(from string) (accepted net.Conn) {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		client, err := dialer.DialContext(t.Context(), "tcp", loopback.Addr().String())
		if err != nil {
			t.Skipf("SKIP: this machine has one loopback address only: %v", err)
		}
		t.Cleanup(func() { _ = client.Close() })
		if accepted, err = listener.Accept(); err != nil {
			t.Fatal(err)
		}
		return accepted
	}
	for _, c := range []struct {
		name string
		conn net.Conn
		open bool
	}{
		{"another client's, the oldest", connect("127.0.0.2"), true},
		{"its first", connect("127.0.0.3"), false},
		{"its second", connect("127.0.0.3"), true},
		{"its third", connect("127.0.0.3"), true},
	} {
		if _, err := c.conn.Write([]byte("x")); (err == nil) != c.open {
			t.Errorf("the connection that is %s: writing says %v, want that it is open: %v", c.name, err, c.open)
		}
	}
}
