package entries

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/entryplan"
)

// barrier finds out whether every API server uses a configuration object as it was
// written. API servers do not report this. So it creates, under dry-run, a ConfigMap that
// the object's barrier entry selects. The answer has the serial of the entry that the API
// server uses. It is safe for concurrent use.
type barrier struct {
	namespace string
	config    *rest.Config
	slices    client.Reader // reads EndpointSlices

	mu      sync.Mutex
	servers []*apiServer // by the addresses that they publish
	asked   time.Time    // when servers was read
	host    *apiServer   // the configured one; nil until it is needed
}

// apiServer is one address that API servers answer at.
type apiServer struct {
	address    string
	configMaps corev1client.ConfigMapInterface
	silent     atomic.Bool      // the last attempt to connect has failed
	proven     map[string]int64 // serial in force, by configuration; guarded by barrier.mu
}

const (
	// serversKept is how long a list of API servers is used.
	serversKept = 10 * time.Second
	// A configuration reaches an API server after 4 to 50 ms.
	firstProbePause = 2 * time.Millisecond
	lastProbePause  = 50 * time.Millisecond
	// connectTimeout is after how long the barrier leaves out an address that does not
	// answer: a lost packet is sent again after one second. From then on it waits for the
	// address for silentPatience at most.
	connectTimeout = 2 * time.Second
	silentPatience = 100 * time.Millisecond
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

// passed reports whether every API server that can be reached is known to use a
// configuration at that serial or a later one. It asks no API server.
func (b *barrier) passed(configuration string, serial int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	counted := slices.DeleteFunc(slices.Clone(b.servers), func(s *apiServer) bool { return s.silent.Load() })
	if len(counted) == 0 && b.host != nil {
		counted = append(counted, b.host)
	}
	return len(counted) > 0 && !slices.ContainsFunc(counted, func(s *apiServer) bool { return s.proven[configuration] < serial })
}

// await asks until every API server that can be reached uses the configuration at that
// serial or a later one, at most until ctx ends. If no API server can be reached by its own
// address, it asks the configured host.
func (b *barrier) await(ctx context.Context, configuration string, serial int64) error {
	servers, err := b.published(ctx)
	if err != nil {
		return err
	}
	answered, err := b.ask(ctx, servers, configuration, serial)
	if answered || err != nil {
		return err
	}
	host, err := b.configured()
	if err != nil {
		return err
	}
	return b.awaitOne(ctx, host, configuration, serial)
}

// ask reports whether any of the servers could be reached. Its error names those that could
// be reached and do not use the configuration in time.
func (b *barrier) ask(ctx context.Context, servers []*apiServer, configuration string, serial int64) (answered bool, err error) {
	results := make([]error, len(servers))
	var all sync.WaitGroup
	for i, s := range servers {
		all.Go(func() {
			ctx := ctx
			if s.silent.Load() {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, silentPatience)
				defer cancel()
			}
			results[i] = b.awaitOne(ctx, s, configuration, serial)
		})
	}
	all.Wait()
	var errs []error
	for i, s := range servers {
		if results[i] == nil || !s.silent.Load() {
			answered = true
			errs = append(errs, results[i])
		}
	}
	return answered, errors.Join(errs...)
}

func (b *barrier) awaitOne(ctx context.Context, s *apiServer, configuration string, serial int64) error {
	has := b.note(s, configuration, 0)
	for pause := firstProbePause; ; pause = min(2*pause, lastProbePause) {
		if has >= serial {
			return nil
		}
		now, err := b.probe(ctx, s, configuration)
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("asking API server %s which serial of %s it uses: %w", s.address, configuration, err)
		}
		if has = b.note(s, configuration, now); has >= serial {
			return nil
		}
		select {
		case <-ctx.Done():
			return &notInForceError{s.address, configuration, serial, has}
		case <-time.After(pause):
		}
	}
}

// note notes a serial that an API server uses, and returns the highest serial that it is
// known to have used.
func (b *barrier) note(s *apiServer, configuration string, serial int64) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.proven[configuration] = max(s.proven[configuration], serial)
	return s.proven[configuration]
}

// probe returns the serial that an API server uses; 0 if its answer has none.
func (b *barrier) probe(ctx context.Context, s *apiServer, configuration string) (int64, error) {
	probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "sidecarset-barrier-",
		Labels:       map[string]string{entryplan.LabelBarrier: configuration},
	}}
	answer, err := s.configMaps.Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return 0, err
	}
	s.silent.Store(false) // an older connection still works
	said := answer.Annotations[entryplan.AnnotationBarrier]
	if said == "" {
		return 0, nil // no replica answered for the entry, or there is none yet
	}
	serial, err := strconv.ParseInt(said, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("annotation %s of the answer to a barrier: %w", entryplan.AnnotationBarrier, err)
	}
	return serial, nil
}

// published returns the API servers by the addresses that they publish.
func (b *barrier) published(ctx context.Context) ([]*apiServer, error) {
	b.mu.Lock()
	kept, asked := b.servers, b.asked
	b.mu.Unlock()
	if !asked.IsZero() && time.Since(asked) < serversKept {
		return kept, nil
	}
	var list discoveryv1.EndpointSliceList
	err := b.slices.List(ctx, &list, client.InNamespace(metav1.NamespaceDefault), client.MatchingLabels{discoveryv1.LabelServiceName: "kubernetes"})
	if err != nil {
		return nil, fmt.Errorf("listing the addresses of API servers: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var servers []*apiServer
	for _, address := range endpoints(&list) {
		if at := slices.IndexFunc(b.servers, func(s *apiServer) bool { return s.address == address }); at >= 0 {
			servers = append(servers, b.servers[at])
			continue
		}
		config := rest.CopyConfig(b.config)
		config.Host = (&url.URL{Scheme: "https", Host: address}).String()
		if config.ServerName == "" {
			config.ServerName = "kubernetes.default.svc" // in the certificate of every API server
		}
		s, err := b.server(address, config)
		if err != nil {
			return nil, err
		}
		servers = append(servers, s)
	}
	b.servers, b.asked = servers, time.Now()
	return servers, nil
}

// configured returns the API server at the host that the operator's other clients use.
func (b *barrier) configured() (*apiServer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.host != nil {
		return b.host, nil
	}
	host, err := b.server(b.config.Host, rest.CopyConfig(b.config))
	if err != nil {
		return nil, err
	}
	b.host = host
	return host, nil
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

// server makes a client for an address. It notes whether an API server accepts connections
// there.
func (b *barrier) server(address string, config *rest.Config) (*apiServer, error) {
	s := &apiServer{address: address, proven: map[string]int64{}}
	dial := config.Dial
	if dial == nil {
		dial = (&net.Dialer{KeepAlive: 30 * time.Second}).DialContext
	}
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		limited, cancel := context.WithTimeout(ctx, connectTimeout)
		defer cancel()
		connection, err := dial(limited, network, address)
		if ctx.Err() == nil {
			s.silent.Store(err != nil)
		}
		return connection, err
	}
	// Because of Proxy, the client shares no connections with other clients: those of one
	// address lead to one API server.
	config.Proxy = http.ProxyFromEnvironment
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client for API server %s: %w", address, err)
	}
	s.configMaps = core.ConfigMaps(b.namespace)
	return s, nil
}
