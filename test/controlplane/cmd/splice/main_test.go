package main

import "testing"

func TestOnlyLoopback(t *testing.T) {
	for address, ok := range map[string]bool{"127.0.0.1:1": true, "[::1]:1": true, "10.0.0.1:1": false, "example.com:1": false, "127.0.0.1": false} {
		if err := loopbackOnly(address); (err == nil) != ok {
			t.Errorf("%s: %v", address, err)
		}
	}
}
