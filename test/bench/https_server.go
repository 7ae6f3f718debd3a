package bench

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/sidecarset/operator/certs"
	"github.com/sidecarset/operator/webhooks/server"
)

// Site is a server that answers over HTTPS.
type Site string

// The sites that are compared.
const (
	// SiteStatic reads the body and writes an answer of the size that is asked
	// for, on a server of net/http without any limit. No site can be faster.
	SiteStatic Site = "static"
	// SiteOurs is the operator's handler on the operator's own server.
	SiteOurs Site = "ours"
	// SiteComparator is the comparator on a server of net/http.
	SiteComparator Site = "comparator"
)

// Sites are all sites. Sites that are compared are next to each other.
var Sites = []Site{SiteStatic, SiteOurs, SiteComparator}

// httpsSets is how many SidecarSets a site knows.
const httpsSets = 100

// Greeting is the first line that a site writes. It says how to reach the site.
type Greeting struct {
	Address string
	CA      []byte // DER, signed the site's certificate
}

// Serve runs a site: it writes the Greeting to out, serves requests on a loopback port with one
// processor, answers each line of in with its CPU time in nanoseconds, and ends when in ends.
// It is meant for a process of its own.
func Serve(ctx context.Context, site Site, in io.Reader, out io.Writer) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ca, err := certs.IssueCA("bench", time.Now(), 24*time.Hour)
	if err != nil {
		return err
	}
	certificate, err := ca.IssueLeaf(certs.Subject{IPs: []net.IP{net.IPv4(127, 0, 0, 1)}})
	if err != nil {
		return err
	}
	address, err := listen(ctx, site, certificate)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(out).Encode(Greeting{address.String(), ca.Certificate.Raw}); err != nil {
		return err
	}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		if _, err := fmt.Fprintln(out, processCPU().Nanoseconds()); err != nil {
			return err
		}
	}
	return nil
}

func listen(ctx context.Context, site Site, certificate *tls.Certificate) (net.Addr, error) {
	switch site {
	case SiteStatic:
		return listenPlainly(ctx, http.HandlerFunc(answerStatically), certificate)
	case SiteOurs:
		return listenBounded(ctx, NewOurs(SidecarSets(httpsSets)).Handle, certificate)
	case SiteComparator:
		return listenPlainly(ctx, NewComparator(SidecarSets(httpsSets)), certificate)
	default:
		return nil, fmt.Errorf("there is no site %q", site)
	}
}

// listenPlainly serves with a plain server of net/http, over the protocols with which an API
// server calls a Service: HTTP/1.1 and TLS 1.3.
func listenPlainly(ctx context.Context, handler http.Handler, certificate *tls.Certificate) (net.Addr, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	server := &http.Server{
		Handler: handler, Protocols: protocols, ReadHeaderTimeout: 4 * time.Second,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{*certificate}, MinVersion: tls.VersionTLS13},
	}
	context.AfterFunc(ctx, func() { _ = server.Close() }) // the benchmark is over, so an error does not matter
	go func() { _ = server.ServeTLS(listener, "", "") }() // ends with the server
	return listener.Addr(), nil
}

// listenBounded serves as the operator does, limits and deadlines included.
func listenBounded(ctx context.Context, handler server.Handler, certificate *tls.Certificate) (net.Addr, error) {
	bounded := server.New(server.Options{
		Address:        "127.0.0.1:0",
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate, nil },
	})
	bounded.Register(server.GroupPods, "/{size}", handler)
	failed := make(chan error, 1)
	go func() { failed <- bounded.Start(ctx) }()
	err := wait.PollUntilContextTimeout(ctx, time.Millisecond, 10*time.Second, true, func(context.Context) (bool, error) {
		select {
		case err := <-failed:
			return false, err
		default:
			return bounded.Addr() != nil, nil
		}
	})
	return bounded.Addr(), err
}

// answerStatically reads all of the body, as every webhook has to, and writes as many bytes as the path says.
func answerStatically(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return // the client is gone
	}
	size, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
	if err != nil || size < 0 || size > len(staticAnswer) {
		http.Error(w, "which size?", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(staticAnswer[:size]) // the client may be gone
}

var staticAnswer = make([]byte, 1<<20)
