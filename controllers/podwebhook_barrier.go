package controllers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/propagation"
)

// barrier finds out whether every API server uses a configuration object as it
// was written. There is no status to ask for: it creates a ConfigMap under
// dry-run that the object's barrier entry selects, and the answer carries the
// serial of the entry that the API server has. It is safe for concurrent use.
type barrier struct {
	namespace string
	config    *rest.Config
	slices    client.Reader // reads EndpointSlices
	clock     clock.PassiveClock

	mu      sync.Mutex
	servers []*apiServer
	asked   time.Time // when servers was read
}

// apiServer is one address that API servers answer at.
type apiServer struct {
	address    string
	configMaps corev1client.ConfigMapInterface
	proven     map[string]int64 // serial in force, by configuration; guarded by barrier.mu
}

const (
	// serversKept is how long a list of API servers is used.
	serversKept = 10 * time.Second
	// A configuration reaches an API server after 4 to 50 ms.
	firstProbePause = 2 * time.Millisecond
	lastProbePause  = 50 * time.Millisecond
)

// notInForceError says which API server does not use a configuration yet.
type notInForceError struct {
	server, configuration string
	serial, has           int64
}

func (e *notInForceError) Error() string {
	if e.has == 0 {
		return fmt.Sprintf("API server %s has not called the operator for %s yet", e.server, e.configuration)
	}
	return fmt.Sprintf("API server %s uses serial %d of %s, and not %d yet", e.server, e.has, e.configuration, e.serial)
}

// passed says, without asking, whether every API server is known to use a
// configuration at that serial or a later one.
func (b *barrier) passed(configuration string, serial int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.servers {
		if s.proven[configuration] < serial {
			return false
		}
	}
	return len(b.servers) > 0
}

// await asks until every API server that can be reached uses the configuration
// at that serial or a later one, at most until ctx ends.
func (b *barrier) await(ctx context.Context, configuration string, serial int64) error {
	servers, err := b.reachable(ctx)
	if err != nil {
		return err
	}
	results := make(chan error, len(servers))
	for _, s := range servers {
		go func() { results <- b.awaitOne(ctx, s, configuration, serial) }()
	}
	var unreachable, errs []error
	for range servers {
		switch err := <-results; {
		case err == nil:
		case isUnreachable(err):
			unreachable = append(unreachable, err)
		default:
			errs = append(errs, err)
		}
	}
	if len(unreachable) == len(servers) {
		errs = append(errs, unreachable...)
	}
	return errors.Join(errs...)
}

func (b *barrier) awaitOne(ctx context.Context, s *apiServer, configuration string, serial int64) error {
	has := b.provenAt(s, configuration)
	for pause := firstProbePause; ; pause = min(2*pause, lastProbePause) {
		if has >= serial {
			return nil
		}
		now, err := b.probe(ctx, s, configuration)
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("asking API server %s which configuration it uses: %w", s.address, err)
		}
		if has = max(has, now); has >= serial {
			b.prove(s, configuration, has)
			return nil
		}
		select {
		case <-ctx.Done():
			return &notInForceError{s.address, configuration, serial, has}
		case <-time.After(pause):
		}
	}
}

func (b *barrier) provenAt(s *apiServer, configuration string) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return s.proven[configuration]
}

func (b *barrier) prove(s *apiServer, configuration string, serial int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.proven[configuration] = max(s.proven[configuration], serial)
}

// probe returns the serial that an API server uses; 0 if its answer has none.
func (b *barrier) probe(ctx context.Context, s *apiServer, configuration string) (int64, error) {
	probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "sidecarset-barrier-",
		Labels:       map[string]string{propagation.LabelBarrier: configuration},
	}}
	answer, err := s.configMaps.Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return 0, err
	}
	said := answer.Annotations[propagation.AnnotationBarrier]
	if said == "" {
		return 0, nil // nobody answered for the entry, or there is none yet
	}
	serial, err := strconv.ParseInt(said, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("annotation %s of the answer to a barrier: %w", propagation.AnnotationBarrier, err)
	}
	return serial, nil
}

// isUnreachable tells an address where nothing listens from a server that
// answers.
func isUnreachable(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial"
}

// reachable returns the API servers, by the addresses that they publish. Where
// they publish none, or several hide behind one, it is the configured host.
func (b *barrier) reachable(ctx context.Context) ([]*apiServer, error) {
	b.mu.Lock()
	kept, asked := b.servers, b.asked
	b.mu.Unlock()
	if len(kept) > 0 && b.clock.Since(asked) < serversKept {
		return kept, nil
	}
	var list discoveryv1.EndpointSliceList
	err := b.slices.List(ctx, &list, client.InNamespace(metav1.NamespaceDefault), client.MatchingLabels{discoveryv1.LabelServiceName: "kubernetes"})
	if err != nil {
		return nil, fmt.Errorf("listing the addresses of API servers: %w", err)
	}
	hosts := endpoints(&list)
	if len(hosts) == 0 {
		hosts = []string{""}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	known := map[string]*apiServer{}
	for _, s := range b.servers {
		known[s.address] = s
	}
	servers := make([]*apiServer, 0, len(hosts))
	for _, host := range hosts {
		s, err := b.server(host)
		if err != nil {
			return nil, err
		}
		if old, ok := known[s.address]; ok {
			s = old
		}
		servers = append(servers, s)
	}
	b.servers, b.asked = servers, b.clock.Now()
	return servers, nil
}

// endpoints are "host:port" of all addresses that are ready.
func endpoints(list *discoveryv1.EndpointSliceList) []string {
	var hosts []string
	for i := range list.Items {
		slice := &list.Items[i]
		port := "443"
		for _, p := range slice.Ports {
			if p.Port != nil {
				port = strconv.Itoa(int(*p.Port))
			}
		}
		for _, endpoint := range slice.Endpoints {
			if ready := endpoint.Conditions.Ready; ready != nil && !*ready {
				continue
			}
			for _, address := range endpoint.Addresses {
				hosts = append(hosts, net.JoinHostPort(address, port))
			}
		}
	}
	return hosts
}

// server makes a client for an address; for the configured host if it is "".
func (b *barrier) server(host string) (*apiServer, error) {
	config := rest.CopyConfig(b.config)
	address := host
	if host == "" {
		address = config.Host
	} else {
		config.Host = (&url.URL{Scheme: "https", Host: host}).String()
		if config.ServerName == "" {
			config.ServerName = "kubernetes.default.svc" // in the certificate of every API server
		}
	}
	// Connections of its own: those of one address lead to one API server.
	config.Proxy = http.ProxyFromEnvironment
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client for API server %s: %w", address, err)
	}
	return &apiServer{address: address, configMaps: core.ConfigMaps(b.namespace), proven: map[string]int64{}}, nil
}
