package plane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// serveControl answers requests about the stand on a socket in its directory.
func serveControl(dir string, s *supervisor) (io.Closer, error) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		info, err := s.snapshot()
		answer(w, info, err)
	})
	mux.HandleFunc("POST /kill/{component}", func(w http.ResponseWriter, r *http.Request) {
		carryOut(w, s, s.kill(r.PathValue("component")))
	})
	mux.HandleFunc("POST /restart/{component}", func(w http.ResponseWriter, r *http.Request) {
		// The restart continues even if the caller stops waiting.
		carryOut(w, s, s.restart(context.WithoutCancel(r.Context()), r.PathValue("component")))
	})
	var listener net.Listener
	err := inDir(dir, func(path string) (err error) {
		_ = os.Remove(path) // a killed supervisor left it; the lock shows that no other one runs
		listener, err = net.Listen("unix", path)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listening for control requests in %s: %w", dir, err)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	return server, nil
}

// carryOut updates stand.json after a request, and answers with what runs now.
func carryOut(w http.ResponseWriter, s *supervisor, err error) {
	info, publishing := s.publish()
	answer(w, info, errors.Join(err, publishing))
}

func answer(w http.ResponseWriter, info *Info, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_ = json.NewEncoder(w).Encode(info)
}

// inDir calls f with a short path to the control socket in dir, however long dir's own path is: a
// socket's address has at most about a hundred bytes.
func inDir(dir string, f func(path string) error) error {
	handle, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer handle.Close()
	return f(filepath.Join("/proc/self/fd", fmt.Sprint(handle.Fd()), "control.sock"))
}

// Status asks the supervisor in dir what runs.
func Status(ctx context.Context, dir string) (*Info, error) {
	return request(ctx, dir, http.MethodGet, "/status")
}

// Kill ends one component of the stand in dir as a crash would. The stand runs on without it.
func Kill(ctx context.Context, dir, component string) (*Info, error) {
	return request(ctx, dir, http.MethodPost, "/kill/"+url.PathEscape(component))
}

// Restart starts one component of the stand in dir again, after stopping it if
// it runs, and waits until it is healthy.
func Restart(ctx context.Context, dir, component string) (*Info, error) {
	return request(ctx, dir, http.MethodPost, "/restart/"+url.PathEscape(component))
}

func request(ctx context.Context, dir, method, path string) (*Info, error) {
	running, err := IsRunning(dir)
	if err != nil {
		return nil, err
	}
	if !running {
		return nil, fmt.Errorf("%w in %s", ErrNotRunning, dir)
	}
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (conn net.Conn, err error) {
			err = inDir(dir, func(path string) (err error) {
				conn, err = new(net.Dialer).DialContext(ctx, "unix", path)
				return err
			})
			return conn, err
		},
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://stand"+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, fmt.Errorf("asking the stand in %s: %w", dir, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("stand in %s: %s", dir, strings.TrimSpace(string(body)))
	}
	info := new(Info)
	return info, json.Unmarshal(body, info)
}
