package registration

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/podwebhook"
)

// pipes is a listener without a network.
type pipes struct {
	connections chan net.Conn
	closed      chan struct{}
	once        sync.Once
}

func newPipes() *pipes {
	return &pipes{connections: make(chan net.Conn), closed: make(chan struct{})}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case connection := <-p.connections:
		return connection, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial(ctx context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.connections <- theirs:
		return ours, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// proberCluster is the API servers of a cluster, by address.
type proberCluster struct {
	client.Reader // of EndpointSlices

	published []string
	servers   map[string]*testAPIServer
}

// testAPIServer creates ConfigMaps under dry-run. As a real one, it calls the operator by the
// webhooks of its configurations that select one.
type testAPIServer struct {
	listener *pipes

	mu    sync.Mutex
	uses  map[string]*podwebhook.Shard // by name
	asked int                          // the number of ConfigMaps

	// refuses and drops say what becomes of attempts to connect.
	refuses, drops bool
	// forbids is why ConfigMaps are not created; "" if they are.
	forbids string
	// instead, if not nil, answers instead of an API server.
	instead http.HandlerFunc
	// unanswered is the number of calls that no replica answers from now on; -1 for all.
	unanswered int
}

const (
	configuredHost = "10.96.0.1:443"
	addressA       = "10.0.0.1:6443"
	addressB       = "10.0.0.2:6443"
)

// inCluster runs a test with a prober and the API servers that it asks, in a synctest bubble. The
// configured host answers, too.
func inCluster(t *testing.T, published []string, test func(t *testing.T, p *prober, c *proberCluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &proberCluster{published: published, servers: map[string]*testAPIServer{}}
		for _, address := range append([]string{configuredHost}, published...) {
			s := &testAPIServer{listener: newPipes(), uses: map[string]*podwebhook.Shard{}}
			c.servers[address] = s
			server := httptest.NewUnstartedServer(http.HandlerFunc(s.create))
			server.Listener = s.listener
			server.Config.ErrorLog = log.New(io.Discard, "", 0)
			server.StartTLS()
			defer server.Close()
		}
		p, err := newProber("ours", &rest.Config{
			Host: "https://" + configuredHost, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, Dial: c.dial, QPS: -1,
			ContentConfig: rest.ContentConfig{ContentType: "application/json"},
		}, c)
		if err != nil {
			t.Fatal(err)
		}
		test(t, p, c)
	})
}

func (c *proberCluster) dial(ctx context.Context, _, address string) (net.Conn, error) {
	s := c.servers[address]
	s.mu.Lock()
	refuses, drops := s.refuses, s.drops
	s.mu.Unlock()
	if refuses {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	if drops {
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: ctx.Err()}
	}
	return s.listener.dial(ctx)
}

func (c *proberCluster) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	list, ok := into.(*discoveryv1.EndpointSliceList)
	if !ok {
		return errors.New("a list of something else")
	}
	for _, address := range c.published {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return err
		}
		number, err := strconv.ParseInt(port, 10, 32)
		if err != nil {
			return err
		}
		list.Items = append(list.Items, discoveryv1.EndpointSlice{
			Ports: []discoveryv1.EndpointPort{{Port: new(int32(number))}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{host}}},
		})
	}
	return nil
}

// set changes API servers; all of them if no address is given.
func (c *proberCluster) set(change func(*testAPIServer), addresses ...string) {
	for address, s := range c.servers {
		if len(addresses) == 0 || strings.Contains(strings.Join(addresses, " "), address) {
			s.mu.Lock()
			change(s)
			s.mu.Unlock()
		}
	}
}

// count is how many ConfigMaps an API server was asked to create.
func (c *proberCluster) count(address string) int {
	s := c.servers[address]
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// uses has API servers use a version of a shard from now on.
func (c *proberCluster) uses(s *podwebhook.Shard, addresses ...string) {
	c.set(func(server *testAPIServer) { server.uses[s.Object.Name] = s }, addresses...)
}

func (s *testAPIServer) create(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if s.instead != nil {
		s.instead(w, r)
		return
	}
	probe := &corev1.ConfigMap{}
	if err := json.NewDecoder(r.Body).Decode(probe); err != nil || r.URL.Query().Get("dryRun") != "All" || !strings.HasSuffix(r.URL.Path, "/namespaces/ours/configmaps") {
		http.Error(w, "no probe", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if s.forbids != "" {
		refusal := apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "", errors.New(s.forbids)).Status()
		refusal.APIVersion, refusal.Kind = "v1", "Status"
		w.WriteHeader(int(refusal.Code))
		_ = json.NewEncoder(w).Encode(refusal)
		return
	}
	for _, shard := range s.uses {
		for i := range shard.Object.Webhooks {
			s.call(&shard.Object.Webhooks[i], probe)
		}
	}
	probe.APIVersion, probe.Kind = "v1", "ConfigMap"
	_ = json.NewEncoder(w).Encode(probe)
}

// call makes the call of one webhook, if that selects the ConfigMap. It is answered as by AnswerProbe.
func (s *testAPIServer) call(webhook *admissionregistrationv1.MutatingWebhook, probe *corev1.ConfigMap) {
	selector, err := metav1.LabelSelectorAsSelector(webhook.ObjectSelector)
	switch label, isProbe := podwebhook.ParseProbePath(*webhook.ClientConfig.Service.Path); {
	case err != nil || !isProbe || !selector.Matches(labels.Set(probe.Labels)):
	case s.unanswered != 0:
		s.unanswered--
	default:
		metav1.SetMetaDataAnnotation(&probe.ObjectMeta, label, probe.Labels[label])
	}
}
