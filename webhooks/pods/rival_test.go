package pods_test

import (
	"testing"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/rival"
	"github.com/sidecarset/operator/webhooks/pods"
	"github.com/sidecarset/operator/webhooks/server"
)

// The Injector leaves a Pod alone if another injector is called for it.
func TestPodsOfAnotherInjectorAreLeftAlone(t *testing.T) {
	catalog := catalogOf(t, fixtures.SidecarSet("log").Container("log", "log:v2").Map())
	kruise := &rival.Injector{Configuration: "kruise-mutating-webhook-configuration"}
	after := &rival.Injector{Configuration: "the-kruise-configuration"}
	tests := map[string]struct {
		rival    *rival.Injector
		recorded bool
		injected bool
	}{
		"a Pod that it injected, whatever the revision": {kruise, true, false},
		"not one that it was not called for":            {kruise, false, true},
		"any, if it is called after us":                 {after, false, false},
		"none, if there is no other":                    {nil, true, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			handler := server.Handler(newInjector(pods.Options{
				Snapshot: func() *match.Snapshot { return catalog },
				Rival:    func() *rival.Injector { return tc.rival },
			}).static)
			pod := fixtures.Pod("web").Label("app", "web").Container("app", "app:v1")
			if tc.recorded {
				pod = pod.Annotation("kruise.io/sidecarset-hash", `{"log":{"hash":"another","sidecarSetName":"log"}}`)
			}
			answer := fixtures.Review(t, handler, fixtures.Encode(t, request(pod.Obj())))
			if !answer.Allowed || (answer.Patch != nil) != tc.injected {
				t.Errorf("allowed %v with patch %s", answer.Allowed, answer.Patch)
			}
		})
	}
}
