package main

import (
	"testing"
)

func TestTheRegistryListensOnLoopbackOnly(t *testing.T) {
	if err := registryCommand(t.Context(), []string{"--listen=0.0.0.0:0"}); err == nil {
		t.Error("it listens on all addresses")
	}
}
