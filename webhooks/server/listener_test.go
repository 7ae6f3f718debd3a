package server_test

import (
	"net"
	"testing"

	"github.com/sidecarset/operator/webhooks/server"
)

// A client at its own bound keeps out itself only.
func TestAClientAtItsBoundGetsNoMoreConnections(t *testing.T) {
	loopback, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener := server.Limit(loopback, 100, 2)
	defer listener.Close()
	connect := func(from string) net.Conn {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		client, err := dialer.DialContext(t.Context(), "tcp", loopback.Addr().String())
		if err != nil {
			t.Skipf("SKIP: this machine has one loopback address only: %v", err)
		}
		t.Cleanup(func() { _ = client.Close() })
		return client
	}
	accept := func(want string) net.Conn {
		accepted, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if from := accepted.RemoteAddr().(*net.TCPAddr).IP.String(); from != want {
			t.Errorf("it accepts %s, want %s", from, want)
		}
		return accepted
	}
	connect("127.0.0.3")
	connect("127.0.0.3")
	third := connect("127.0.0.3")
	connect("127.0.0.2")
	first := accept("127.0.0.3")
	accept("127.0.0.3")
	accept("127.0.0.2")
	if _, err := third.Read(make([]byte, 1)); err == nil {
		t.Error("the third connection is open")
	}
	_ = first.Close()
	_ = first.Close() // counts once
	connect("127.0.0.3")
	accept("127.0.0.3")
	connect("127.0.0.3")
	connect("127.0.0.2")
	accept("127.0.0.2")
}
