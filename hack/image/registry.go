package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/registry"
)

func registryCommand(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("registry", flag.ContinueOnError)
	address := fs.String("listen", "127.0.0.1:0", "loopback `address`")
	if err := fs.Parse(args); err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(*address)
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return fmt.Errorf("%s is not a loopback address: this registry lets everybody write", host)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", *address)
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	server := &http.Server{Handler: newGates(registry.New(registry.Logger(log.New(io.Discard, "", 0))))}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); ctx.Err() == nil {
		return err
	}
	return nil
}

// gates make a registry as slow as a test wants. While the gate of a repository is closed,
// requests for its manifests wait.
//
//	PUT /gates/REPOSITORY     closes the gate
//	GET /gates/REPOSITORY     says how many requests wait
//	DELETE /gates/REPOSITORY  opens it
type gates struct {
	registry http.Handler

	mu     sync.Mutex
	closed map[string]*gate // by repository
}

type gate struct {
	opened  chan struct{}
	waiting int
}

func newGates(registry http.Handler) *gates {
	return &gates{registry: registry, closed: map[string]*gate{}}
}

func (g *gates) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if repository, ok := strings.CutPrefix(r.URL.Path, "/gates/"); ok {
		g.control(w, r.Method, repository)
		return
	}
	repository, _, isManifest := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v2/"), "/manifests/")
	if isManifest && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		g.pass(r.Context(), repository)
	}
	g.registry.ServeHTTP(w, r)
}

func (g *gates) control(w http.ResponseWriter, method, repository string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := g.closed[repository]
	switch method {
	case http.MethodPut:
		if at == nil {
			g.closed[repository] = &gate{opened: make(chan struct{})}
		}
	case http.MethodDelete:
		if at != nil {
			close(at.opened)
			delete(g.closed, repository)
		}
	default:
		waiting := 0
		if at != nil {
			waiting = at.waiting
		}
		fmt.Fprintln(w, waiting)
	}
}

// pass returns when the repository's gate is open, or when the client is gone.
func (g *gates) pass(ctx context.Context, repository string) {
	g.mu.Lock()
	at := g.closed[repository]
	if at != nil {
		at.waiting++
	}
	g.mu.Unlock()
	if at == nil {
		return
	}
	select {
	case <-at.opened:
	case <-ctx.Done():
	}
	g.mu.Lock()
	at.waiting--
	g.mu.Unlock()
}
