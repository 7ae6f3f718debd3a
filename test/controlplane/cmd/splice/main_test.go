package main

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
)

// echo answers each connection with name, and then with the data that it receives.
func echo(t *testing.T, name string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, name)
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}
	}()
	return listener.Addr().String()
}

// talk sends "x" through serve and returns all that comes back.
func talk(t *testing.T, backends []string, start int) string {
	t.Helper()
	near, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	go func() {
		conn, err := near.Accept()
		if err == nil {
			serve(context.Background(), conn, backends, start)
		}
	}()
	conn, err := net.Dial("tcp", near.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "x")
	_ = conn.(*net.TCPConn).CloseWrite()
	all, err := io.ReadAll(conn)
	// A connection closed before "x" was read ends with a reset.
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
	return string(all)
}

func TestServe(t *testing.T) {
	a, b := echo(t, "a"), echo(t, "b")
	tests := map[string]struct {
		backends []string
		start    int
		want     string
	}{
		"takes the backends in turn":      {[]string{a, b}, 1, "bx"},
		"skips a backend that refuses":    {[]string{"127.0.0.1:1", b}, 0, "bx"},
		"closes where every one refuses":  {[]string{"127.0.0.1:1"}, 0, ""},
		"joins both halves of the stream": {[]string{a}, 0, "ax"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := talk(t, tc.backends, tc.start); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestOnlyLoopback(t *testing.T) {
	for address, ok := range map[string]bool{"127.0.0.1:1": true, "[::1]:1": true, "10.0.0.1:1": false, "example.com:1": false, "127.0.0.1": false} {
		if err := loopbackOnly(address); (err == nil) != ok {
			t.Errorf("%s: %v", address, err)
		}
	}
}
