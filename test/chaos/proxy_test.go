package chaos

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/sidecarset/operator/test/deploy"
)

// proxy is between replicas and the first API server. It shows replicas the faults of
// networks and API servers, and passes on their tokens.
type proxy struct {
	server *httptest.Server
	fault  atomic.Pointer[fault] // nil: none
	lag    string                // the resource whose watches are late; set before replicas start

	mu      sync.Mutex
	watches map[*http.Request]func() // what ends each of the watches
}

// fault answers a request and returns true, or returns false to let the request pass.
type fault func(http.ResponseWriter, *http.Request) bool

// startProxy starts a proxy, and returns the flags that make a replica use it.
func startProxy(t *testing.T) (*proxy, []string) {
	t.Helper()
	target, err := url.Parse(cluster.APIServers[0])
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(cluster.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	p := &proxy{watches: map[*http.Request]func(){}}
	reverse := &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:      transport,
		ModifyResponse: p.delay,
		FlushInterval:  -1,                         // watches are passed on at once
		ErrorLog:       log.New(io.Discard, "", 0), // of the faults that the test imposes
		// An API server that has ended closes its connections.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	p.server = httptest.NewUnstartedServer(p.handle(reverse))
	p.server.EnableHTTP2 = true
	p.server.Config.ErrorLog = reverse.ErrorLog
	p.server.StartTLS()
	t.Cleanup(func() {
		p.lift()
		p.server.CloseClientConnections()
		p.server.Close()
		transport.CloseIdleConnections()
	})
	return p, []string{"--kubeconfig=" + p.kubeconfig(t)}
}

// kubeconfig writes a copy of the operator's kubeconfig that names the proxy.
func (p *proxy) kubeconfig(t *testing.T) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(filepath.Join(cluster.Dir, deploy.ServiceAccount+".kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	server := config.Clusters[config.Contexts[config.CurrentContext].Cluster]
	server.Server, server.CertificateAuthority = p.server.URL, ""
	server.CertificateAuthorityData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	return file
}

func (p *proxy) handle(next http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if f := p.fault.Load(); f != nil && (*f)(w, r) {
			return
		}
		if r.URL.Query().Get("watch") != "true" {
			next.ServeHTTP(w, r)
			return
		}
		ctx, end := context.WithCancel(r.Context())
		defer end()
		p.mu.Lock()
		p.watches[r] = end
		p.mu.Unlock()
		defer func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.watches, r)
		}()
		next.ServeHTTP(w, r.WithContext(ctx))
	}
}

// lateBody passes on some time later what it reads.
type lateBody struct{ io.ReadCloser }

func (b lateBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	<-time.After(300 * time.Millisecond)
	return n, err
}

// delay makes the events of a response late if it is a watch of that resource.
func (p *proxy) delay(response *http.Response) error {
	if url := response.Request.URL; p.lag != "" && strings.HasSuffix(url.Path, "/"+p.lag) && url.Query().Get("watch") == "true" {
		response.Body = lateBody{response.Body}
	}
	return nil
}

// impose applies the fault to every request until it is lifted.
func (p *proxy) impose(f fault) { p.fault.Store(&f) }

func (p *proxy) lift() { p.fault.Store(nil) }

// cutWatches ends all watches in the middle.
func (p *proxy) cutWatches() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, end := range p.watches {
		end()
	}
}

// late makes each request wait.
func late(by time.Duration) fault {
	return func(_ http.ResponseWriter, r *http.Request) bool {
		select {
		case <-time.After(by):
		case <-r.Context().Done():
		}
		return false
	}
}

// failing makes one request of three fail, each time in another way.
func failing() fault {
	var count atomic.Int64
	return func(w http.ResponseWriter, _ *http.Request) bool {
		n := count.Add(1)
		if n%3 != 0 {
			return false
		}
		switch codes := []int{http.StatusInternalServerError, http.StatusServiceUnavailable, http.StatusTooManyRequests, 0}; codes[n/3%4] {
		case 0:
			panic(http.ErrAbortHandler) // the stream is reset
		case http.StatusTooManyRequests:
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		default:
			http.Error(w, "injected", codes[n/3%4])
		}
		return true
	}
}

// silent answers nothing before the fault is lifted.
func (p *proxy) silent(_ http.ResponseWriter, r *http.Request) bool {
	for p.fault.Load() != nil && r.Context().Err() == nil {
		<-time.After(20 * time.Millisecond)
	}
	return false
}
