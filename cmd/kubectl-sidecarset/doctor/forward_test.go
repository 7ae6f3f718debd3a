package doctor

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// The certificate of a Pod comes through a port-forward of the API server.
func TestTheCertificateOfAPod(t *testing.T) {
	replica1 := httptest.NewTLSServer(nil)
	defer replica1.Close()
	address := replica1.Listener.Addr().String()
	_, port, _ := net.SplitHostPort(address)
	apiServer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/namespaces/sidecarset-system/pods/a/portforward" {
			http.Error(w, "pods is forbidden", http.StatusForbidden)
			return
		}
		if _, err := httpstream.Handshake(r, w, []string{"portforward.k8s.io"}); err != nil {
			t.Error(err)
			return
		}
		streams := make(chan httpstream.Stream, 2)
		conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(stream httpstream.Stream, _ <-chan struct{}) error {
			streams <- stream
			return nil
		})
		if conn == nil {
			return
		}
		defer conn.Close()
		for {
			select {
			case stream := <-streams:
				if stream.Headers().Get(corev1.StreamType) != corev1.StreamTypeData {
					continue
				}
				if got := stream.Headers().Get(corev1.PortHeader); got != port {
					t.Errorf("port %s, want %s", got, port)
				}
				to, err := net.Dial("tcp", address)
				if err != nil {
					t.Error(err)
					return
				}
				go func() { _, _ = io.Copy(to, stream) }()
				go func() { _, _ = io.Copy(stream, to) }()
			case <-conn.CloseChan():
				return
			}
		}
	}))
	defer apiServer.Close()
	f := &facts{installation: newInstallation(operatorNamespace, nil, nil), Cluster: Cluster{Config: &rest.Config{Host: apiServer.URL}}}
	chain, err := f.handshake(t.Context(), "192.0.2.1:"+port, "a")
	if err != nil {
		t.Fatal(err)
	}
	if !chain[0].Equal(replica1.Certificate()) {
		t.Error("another certificate")
	}
	if _, err := f.handshake(t.Context(), "192.0.2.1:"+port, "b"); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("without the right: %v", err)
	}
}
