package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// A closed gate holds requests for its repository, and lets all others pass. When it is
// opened, the requests continue.
func TestAGateHoldsPullsOfItsRepository(t *testing.T) {
	server := httptest.NewServer(newGates(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	defer server.Close()
	do := func(method, path string) string {
		request, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := server.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		said, _ := io.ReadAll(response.Body)
		return strings.TrimSpace(string(said))
	}
	do(http.MethodPut, "/gates/slow")
	pulled := make(chan struct{})
	go func() {
		defer close(pulled)
		if response, err := server.Client().Get(server.URL + "/v2/slow/manifests/v1"); err == nil {
			response.Body.Close()
		}
	}()
	for do(http.MethodGet, "/gates/slow") != "1" {
		if t.Context().Err() != nil {
			t.Fatal("the pull does not wait at the gate")
		}
	}
	do(http.MethodGet, "/v2/other/manifests/v1")
	do(http.MethodPut, "/v2/slow/manifests/v2")
	select {
	case <-pulled:
		t.Error("the pull passed a closed gate")
	default:
	}
	do(http.MethodDelete, "/gates/slow")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	select {
	case <-pulled:
	case <-ctx.Done():
		t.Error("the pull still waits at an open gate")
	}
}

func TestTheRegistryListensOnLoopbackOnly(t *testing.T) {
	if err := registryCommand(t.Context(), []string{"--listen=0.0.0.0:0"}); err == nil {
		t.Error("it listens on all addresses")
	}
}
