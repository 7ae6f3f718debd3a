package server_test

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/webhooks/server"
)

const serverName = "server.test"

// newCertificate returns a self-signed certificate for serverName.
func newCertificate(t *testing.T, notAfter time.Time) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("generating a key: %v", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: serverName}, DNSNames: []string{serverName},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: notAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatalf("creating a certificate: %v", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// running is a Server that serves on a loopback address.
type running struct {
	*server.Server
	certificate atomic.Pointer[tls.Certificate]
	stop        context.CancelFunc
	stopped     chan error
}

// start serves handlers by path until the test ends.
func start(t *testing.T, options server.Options, handlers map[string]server.Handler) *running {
	t.Helper()
	s := &running{stopped: make(chan error, 1)}
	s.certificate.Store(newCertificate(t, time.Now().Add(time.Hour)))
	options.Address = "127.0.0.1:0"
	// Tests that are not about a limit do not depend on how busy the machine is.
	options.BodyTimeout = cmp.Or(options.BodyTimeout, await.Patience)
	options.WriteTimeout = cmp.Or(options.WriteTimeout, await.Patience)
	options.DrainTimeout = cmp.Or(options.DrainTimeout, await.Patience)
	options.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.certificate.Load(), nil }
	s.Server = server.New(options)
	for path, handler := range handlers {
		s.Register(server.GroupSidecarSets, path, handler)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.stop = cancel
	go func() { s.stopped <- s.Start(ctx) }()
	await.That(t, func() bool { return s.Addr() != nil }, "the server to listen")
	t.Cleanup(func() {
		cancel()
		defer s.Close(t.Context())
		select {
		case err := <-s.stopped:
			if err != nil {
				t.Errorf("the server stopped: %v", err)
			}
		case <-time.After(await.Patience):
			t.Error("the server does not stop")
		}
	})
	return s
}

// client trusts the server's present certificate.
func (s *running) client(t *testing.T, configure ...func(*http.Transport)) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: s.tlsConfig(t)}
	for _, f := range configure {
		f(transport)
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: await.Patience}
}

func (s *running) tlsConfig(t *testing.T) *tls.Config {
	t.Helper()
	leaf, err := x509.ParseCertificate(s.certificate.Load().Certificate[0])
	if err != nil {
		t.Fatalf("parsing the certificate: %v", err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return &tls.Config{RootCAs: roots, ServerName: serverName, MinVersion: tls.VersionTLS12}
}

// dial connects until the test ends. A server that cuts slow clients also cuts a
// handshake that takes long.
func (s *running) dial(t *testing.T) *tls.Conn {
	t.Helper()
	var conn *tls.Conn
	await.Eventually(t, "a handshake", func(context.Context) (err error) {
		conn, err = tls.Dial("tcp", s.Addr().String(), s.tlsConfig(t))
		return err
	})
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (s *running) url(path string) string { return "https://" + s.Addr().String() + path }

func answerOK(_ context.Context, w http.ResponseWriter, r server.Request) error {
	_, err := w.Write(r.Body)
	return err
}

func post(t *testing.T, client *http.Client, url string, body io.Reader) (*http.Response, string) {
	t.Helper()
	response, err := client.Post(url, "application/json", body)
	if err != nil {
		t.Fatalf("posting to %s: %v", url, err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("reading the answer of %s: %v", url, err)
	}
	return response, string(content)
}

func TestServerSpeaksTLS13Only(t *testing.T) {
	s := start(t, server.Options{}, nil)
	for offered, want := range map[uint16]bool{tls.VersionTLS13: true, tls.VersionTLS12: false} {
		config := s.tlsConfig(t)
		config.MaxVersion = offered
		conn, err := tls.Dial("tcp", s.Addr().String(), config)
		if err == nil {
			_ = conn.Close()
		}
		if accepted := err == nil; accepted != want {
			t.Errorf("version %x is accepted: %t (%v)", offered, accepted, err)
		}
	}
}

func TestServerOffersNoHTTP2(t *testing.T) {
	s := start(t, server.Options{}, map[string]server.Handler{"/x": answerOK})
	client := s.client(t, func(transport *http.Transport) { transport.ForceAttemptHTTP2 = true })
	if response, _ := post(t, client, s.url("/x"), strings.NewReader("{}")); response.Proto != "HTTP/1.1" {
		t.Errorf("spoke %s, want HTTP/1.1", response.Proto)
	}
}

func TestServerServesTheNewestCertificate(t *testing.T) {
	s := start(t, server.Options{}, map[string]server.Handler{"/x": answerOK})
	post(t, s.client(t), s.url("/x"), strings.NewReader("{}"))
	s.certificate.Store(newCertificate(t, time.Now().Add(time.Hour)))
	post(t, s.client(t), s.url("/x"), strings.NewReader("{}")) // trusts the new one only
}

func TestServerRefusesOversizedBodies(t *testing.T) {
	read := make(chan int, 1)
	s := start(t, server.Options{}, map[string]server.Handler{"/x": func(_ context.Context, _ http.ResponseWriter, r server.Request) error {
		read <- len(r.Body)
		return nil
	}})
	spaces := strings.Repeat(" ", server.MaxAdmissionBytes)
	for name, body := range map[string]io.Reader{
		"at once where the length is known":   strings.NewReader(spaces + " "),
		"while reading where it is not known": io.MultiReader(strings.NewReader(spaces), strings.NewReader("  ")),
	} {
		t.Run(name, func(t *testing.T) {
			response, content := post(t, s.client(t), s.url("/x"), body)
			if response.StatusCode != http.StatusRequestEntityTooLarge || !strings.Contains(content, `"code":413`) || !response.Close {
				t.Errorf("got %d %s, closing: %t", response.StatusCode, content, response.Close)
			}
			if len(read) != 0 {
				t.Error("the handler was called")
			}
		})
	}
	t.Run("not up to the bound", func(t *testing.T) {
		post(t, s.client(t), s.url("/x"), strings.NewReader(spaces))
		if n := <-read; n != server.MaxAdmissionBytes {
			t.Errorf("read %d bytes", n)
		}
	})
}

// A client that stalls must not hold a connection for longer than the limits.
func TestServerCutsSlowClients(t *testing.T) {
	options := server.Options{BodyTimeout: 200 * time.Millisecond, WriteTimeout: 400 * time.Millisecond, IdleTimeout: 100 * time.Millisecond}
	s := start(t, options, map[string]server.Handler{"/x": answerOK})
	tests := map[string]string{ // the content type is right, so that the server waits for the body
		"in the header":    "POST /x HTTP/1.1\r\nHost: x\r\nX-Slow: ",
		"in the body":      "POST /x HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\nabc",
		"after an answer":  "POST /x HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
		"without anything": "",
	}
	for name, sent := range tests {
		t.Run(name, func(t *testing.T) {
			conn := s.dial(t)
			_, _ = io.WriteString(conn, sent)
			_ = conn.SetReadDeadline(time.Now().Add(await.Patience))
			if _, err := io.Copy(io.Discard, conn); isTimeout(err) {
				t.Error("the connection is still open")
			}
		})
	}
	t.Run("before the handshake", func(t *testing.T) {
		conn, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetReadDeadline(time.Now().Add(await.Patience))
		if _, err := io.Copy(io.Discard, conn); isTimeout(err) {
			t.Error("the connection is still open")
		}
	})
}

// API servers open connections before they need them. If the server closes a connection while
// a request is sent, they do not send the request again. So the time of a request begins with
// its first byte.
func TestServerKeepsConnectionsThatAreNotUsedYet(t *testing.T) {
	options := server.Options{BodyTimeout: 200 * time.Millisecond}
	s := start(t, options, map[string]server.Handler{"/x": answerOK})
	long := strings.Repeat(" ", 64<<10-2) + "{}"
	header := fmt.Sprintf("POST /x HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n", len(long))
	for name, tc := range map[string]struct {
		sent []string
		want string
	}{
		"a request":               {[]string{header + long}, "HTTP/1.1 200 OK"},
		"a header, then a body":   {[]string{header, long}, "HTTP/1.1 200 OK"},
		"a request in pieces":     {[]string{header[:10], header[10:], long[:40<<10], long[40<<10:]}, "HTTP/1.1 200 OK"},
		"a body that has no end":  {[]string{header, long[:100]}, "HTTP/1.1 408 "},
		"a body that never comes": {[]string{header}, "HTTP/1.1 408 "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// On a busy machine, a handshake or a part sometimes comes too late.
			await.Eventually(t, "the answer", func(context.Context) error {
				conn := s.dial(t)
				<-time.After(3 * options.BodyTimeout)
				for _, part := range tc.sent {
					if _, err := io.WriteString(conn, part); err != nil {
						return err
					}
					<-time.After(options.BodyTimeout / 20)
				}
				_ = conn.SetReadDeadline(time.Now().Add(await.Patience)) // longer than a connection may be idle
				answer, err := io.ReadAll(conn)
				if isTimeout(err) {
					t.Fatal("the connection is still open")
				}
				if !strings.HasPrefix(string(answer), tc.want) {
					return fmt.Errorf("got %q, %w, want %q", answer, err, tc.want)
				}
				return nil
			})
		})
	}
}

func isTimeout(err error) bool {
	timeout, ok := err.(net.Error) //nolint:errorlint // as net returns it
	return ok && timeout.Timeout()
}

func TestServerSurvivesAPanic(t *testing.T) {
	s := start(t, server.Options{}, map[string]server.Handler{
		"/panic": func(context.Context, http.ResponseWriter, server.Request) error { panic("secret value") },
		"/x":     answerOK,
	})
	client := s.client(t)
	response, content := post(t, client, s.url("/panic"), strings.NewReader("{}"))
	if response.StatusCode != http.StatusInternalServerError || strings.Contains(content, "secret") {
		t.Errorf("got %d %s, want 500 without the panic's value", response.StatusCode, content)
	}
	post(t, client, s.url("/x"), strings.NewReader("{}"))
}

// A replica stops in this order: it is not ready; it serves as before; its other parts end; it refuses
// new connections; it waits for the requests in flight. API servers send conversions until its
// process has ended, although it is not ready.
func TestServerServesUntilItIsClosed(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	stopping := make(chan struct{})
	s := start(t, server.Options{Stopping: stopping}, map[string]server.Handler{
		"/x": answerOK,
		"/slow": func(_ context.Context, w http.ResponseWriter, _ server.Request) error {
			close(entered)
			<-leave
			_, err := io.WriteString(w, "done")
			return err
		},
	})
	s.Register(server.GroupConversions, "/convert", answerOK)
	client := s.client(t)
	if err := s.Ready(nil); err != nil {
		t.Fatalf("not ready: %v", err)
	}
	close(stopping)
	await.That(t, func() bool { return s.Ready(nil) != nil }, "the server to be un-ready")
	if response, _ := post(t, client, s.url("/x"), strings.NewReader("{}")); !response.Close {
		t.Error("a draining server has to ask clients for a new connection")
	}
	s.stop()
	if err := <-s.stopped; err != nil {
		t.Fatal(err)
	}
	s.stopped <- nil
	if response, content := post(t, s.client(t), s.url("/convert"), strings.NewReader("{}")); response.StatusCode != http.StatusOK {
		t.Errorf("a conversion got %d %s", response.StatusCode, content)
	}
	slow := make(chan answer, 1)
	go func() { slow <- ask(client, s.url("/slow")) }()
	<-entered
	closed := make(chan struct{})
	go func() { s.Close(t.Context()); close(closed) }()
	await.That(t, func() bool {
		conn, err := net.Dial("tcp", s.Addr().String())
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	}, "new connections to be refused")
	close(leave)
	if got := <-slow; got.content != "done" {
		t.Errorf("the request in flight got %+v", got)
	}
	<-closed
}

func TestServerClosesRequestsThatOutlastTheDrain(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	defer close(leave)
	s := start(t, server.Options{DrainTimeout: 50 * time.Millisecond}, map[string]server.Handler{
		"/stuck": func(context.Context, http.ResponseWriter, server.Request) error { close(entered); <-leave; return nil },
	})
	client := s.client(t)
	failed := make(chan error, 1)
	go func() {
		response, err := client.Post(s.url("/stuck"), "application/json", strings.NewReader("{}"))
		if err == nil {
			_ = response.Body.Close()
		}
		failed <- err
	}()
	<-entered
	s.Close(t.Context())
	if err := <-failed; err == nil {
		t.Error("the stuck request was answered")
	}
}
