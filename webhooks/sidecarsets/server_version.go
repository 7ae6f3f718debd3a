package sidecarsets

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/util/version"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// ServerMinor returns a function that asks the API server for the minor version
// that it has now: it may be upgraded while this process runs.
func ServerMinor(config *rest.Config, client *http.Client) (func(context.Context) (int, error), error) {
	server, err := discovery.NewDiscoveryClientForConfigAndClient(config, client)
	if err != nil {
		return nil, fmt.Errorf("making a client for the API server's version: %w", err)
	}
	return func(ctx context.Context) (int, error) {
		ctx, cancel := context.WithTimeout(ctx, lookUpTimeout)
		defer cancel()
		answer, err := server.RESTClient().Get().AbsPath("/version").Do(ctx).Raw()
		if err != nil {
			return 0, fmt.Errorf("asking the API server for its version: %w", err)
		}
		var info apiversion.Info
		if err := json.Unmarshal(answer, &info); err != nil {
			return 0, fmt.Errorf("reading the API server's version: %w", err)
		}
		parsed, err := version.ParseGeneric(info.GitVersion)
		if err != nil {
			return 0, fmt.Errorf("reading the API server's version: %w", err)
		}
		return int(parsed.Minor()), nil
	}, nil
}
