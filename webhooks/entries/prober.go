package entries

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

	"github.com/sidecarset/operator/internal/entry"
)

// A probe: a ConfigMap that is created under dry-run only, at every API server.
// +kubebuilder:rbac:roleName=sidecarset-controller,groups="",resources=configmaps,namespace=sidecarset-system,verbs=create
// +kubebuilder:rbac:roleName=sidecarset-controller,groups=discovery.k8s.io,resources=endpointslices,namespace=default,verbs=list

// prober finds out which serials of slots API servers use, and whether they are answered. API
// servers do not report this. So it creates, under dry-run, ConfigMaps that barrier entries
// select; see entry.BarrierLabel. This tries the whole way of a call: the Service, its endpoints,
// the network, the serving certificate, and a replica that answers. It is safe for concurrent use.
type prober struct {
	namespace string
	config    *rest.Config
	slices    client.Reader
	host      *apiServer // the one that the operator's other clients use

	mu       sync.Mutex
	servers  []*apiServer // by the addresses that they publish
	listed   time.Time    // when servers was read
	lastCall time.Time    // when a call was last answered
}

// apiServer is one address that API servers answer at.
type apiServer struct {
	address     string
	configMaps  corev1client.ConfigMapInterface
	unreachable atomic.Bool // the last attempt to connect has failed

	// The prober's mu guards these.
	proven question // the highest proven serials
	calls  calls
}

// question has serials by the labels of a probe.
type question map[string]uint64

// staticSerial is the value of entry.LabelStaticBarrier in a question.
const staticSerial = 1

const (
	// serversKept is how long a list of API servers is used.
	serversKept = 10 * time.Second
	// A configuration reaches an API server after 7 to 50 ms.
	firstProbePause = 2 * time.Millisecond
	lastProbePause  = 50 * time.Millisecond
	// connectTimeout is after how long the prober leaves out an address that does not
	// answer: a lost packet is sent again after one second. From then on await waits for
	// the address for unreachablePatience at most.
	connectTimeout      = 2 * time.Second
	unreachablePatience = 100 * time.Millisecond
	// lookTimeout bounds look. While no replica answers, an API server waits one second for the
	// barrier entry of each slot, one after another. Then look asks again about one slot.
	lookTimeout = (entry.Slots + 4) * time.Second
)

// newProber returns a prober that creates ConfigMaps, under dry-run, in a namespace. slices reads
// EndpointSlices.
func newProber(namespace string, config *rest.Config, slices client.Reader) (*prober, error) {
	host, err := newAPIServer(config.Host, namespace, rest.CopyConfig(config))
	return &prober{namespace: namespace, config: config, slices: slices, host: host}, err
}

// passed reports whether every API server that can be reached is known to use a slot at that
// serial or a later one. It asks no API server.
func (p *prober) passed(slot int, serial uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	counted, label := p.counted(), entry.BarrierLabel(slot)
	return !slices.ContainsFunc(counted, func(s *apiServer) bool { return s.proven[label] < serial })
}

// counted are the API servers that can be reached, each by its own address, else the configured
// host. The caller holds mu.
func (p *prober) counted() []*apiServer {
	counted := slices.DeleteFunc(slices.Clone(p.servers), func(s *apiServer) bool { return s.unreachable.Load() })
	if len(counted) == 0 {
		return []*apiServer{p.host}
	}
	return counted
}

// await asks until every API server that can be reached uses the slot at the serial that want
// returns, or a later one, at most until ctx ends. It calls want before each question: the serial
// may have been followed by so many others that its barrier entry does not name it any more. An
// error of want ends it. Several goroutines call want.
func (p *prober) await(ctx context.Context, slot int, want func() (serial uint64, err error)) error {
	return p.each(ctx, func(ctx context.Context, s *apiServer) error { return p.awaitOne(ctx, s, slot, want) })
}

func (p *prober) awaitOne(ctx context.Context, s *apiServer, slot int, want func() (uint64, error)) error {
	label := entry.BarrierLabel(slot)
	for pause := firstProbePause; ; pause = min(2*pause, lastProbePause) {
		serial, err := want()
		if err != nil || p.proven(s, label) >= serial {
			return err
		}
		answered, err := p.ask(ctx, s, question{label: serial})
		switch {
		case err != nil && ctx.Err() == nil:
			return err
		case len(answered) > 0:
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the operator has received no call from API server %s for serial %d of MutatingWebhookConfiguration %s yet", s.address, serial, entry.ConfigurationName(slot))
		case <-time.After(pause):
		}
	}
}

// look asks every API server about the newest serials of the slots that have entries, in one
// ConfigMap. It notes which API servers are answered, and revokes the proof of a slot that an API
// server does not use any more although its other calls are answered: an API server can go back
// to an older version of a slot. With static, it asks by the barrier entry of static mode.
func (p *prober) look(ctx context.Context, slots [entry.Slots]*entry.Slot, static bool) error {
	newest, older := question{}, question{}
	if static {
		newest[entry.LabelStaticBarrier] = staticSerial
	}
	for i, s := range slots {
		if s == nil || s.Serial == 0 || s.IsEmpty() {
			continue
		}
		newest[entry.BarrierLabel(i)] = s.Serial
		if len(s.Earlier) > 0 {
			older = question{entry.BarrierLabel(i): s.Earlier[len(s.Earlier)-1]}
		}
	}
	if len(newest) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	return p.each(ctx, func(ctx context.Context, s *apiServer) error { return p.lookAt(ctx, s, newest, older) })
}

// each asks all API servers at once. If none can be reached by its own address, it asks the
// configured host. Its error is about those that can be reached.
func (p *prober) each(ctx context.Context, ask func(context.Context, *apiServer) error) error {
	servers, err := p.published(ctx)
	if err != nil {
		return err
	}
	results := make([]error, len(servers))
	var all sync.WaitGroup
	for i, s := range servers {
		all.Go(func() {
			ctx := ctx
			if s.unreachable.Load() {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, unreachablePatience)
				defer cancel()
			}
			results[i] = ask(ctx, s)
		})
	}
	all.Wait()
	reached := false
	var errs []error
	for i, s := range servers {
		reached = reached || results[i] == nil || !s.unreachable.Load()
		if results[i] != nil && !s.unreachable.Load() {
			errs = append(errs, results[i])
		}
	}
	if reached {
		return errors.Join(slices.CompactFunc(errs, func(a, b error) bool { return a.Error() == b.Error() })...)
	}
	return ask(ctx, p.host)
}

// lookAt asks one API server. older has a serial that also an API server which went back uses. So
// an answer about it shows that calls of the API server are answered.
func (p *prober) lookAt(ctx context.Context, s *apiServer, newest, older question) error {
	answered, err := p.ask(ctx, s, newest)
	called := len(answered) > 0
	if err == nil && !called && len(older) > 0 {
		var others question
		others, err = p.ask(ctx, s, older)
		called = len(others) > 0
	}
	switch {
	case err != nil:
		return err
	case !called:
		p.missed(s, time.Now())
		return nil
	}
	lost := maps.Clone(newest)
	maps.DeleteFunc(lost, func(label string, serial uint64) bool { return answered[label] == serial })
	if len(lost) == 0 {
		return nil
	}
	// One call may have been lost: a replica that is about to end does not answer its last ones.
	if answered, err = p.ask(ctx, s, lost); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(s.proven, func(label string, serial uint64) bool { return lost[label] == serial && answered[label] != serial })
	return nil
}

// proven returns the highest serial of a label that an API server is known to use.
func (p *prober) proven(s *apiServer, label string) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return s.proven[label]
}

// ask creates a ConfigMap at an API server, and returns the part of the question by which the API
// server called the operator and was answered. It notes what this proves.
func (p *prober) ask(ctx context.Context, s *apiServer, about question) (answered question, err error) {
	probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "sidecarset-barrier-", Labels: map[string]string{}}}
	for label, serial := range about {
		probe.Labels[label] = strconv.FormatUint(serial, 10)
	}
	answer, err := s.configMaps.Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return nil, fmt.Errorf("creating a ConfigMap in namespace %s under dry-run at API server %s, to see whether it calls the operator: %w", p.namespace, s.address, err)
	}
	s.unreachable.Store(false) // an older connection still works
	answered = maps.Clone(about)
	maps.DeleteFunc(answered, func(label string, _ uint64) bool { return answer.Annotations[label] != probe.Labels[label] })
	p.mu.Lock()
	defer p.mu.Unlock()
	for label, serial := range answered {
		s.proven[label] = max(s.proven[label], serial)
	}
	if now := time.Now(); len(answered) > 0 {
		s.calls, p.lastCall = calls{last: now}, now
	}
	return answered, nil
}

// published returns the API servers by the addresses that they publish.
func (p *prober) published(ctx context.Context) ([]*apiServer, error) {
	p.mu.Lock()
	kept, listed := p.servers, p.listed
	p.mu.Unlock()
	if !listed.IsZero() && time.Since(listed) < serversKept {
		return kept, nil
	}
	var list discoveryv1.EndpointSliceList
	err := p.slices.List(ctx, &list, client.InNamespace(metav1.NamespaceDefault), client.MatchingLabels{discoveryv1.LabelServiceName: "kubernetes"})
	if err != nil {
		return nil, fmt.Errorf("listing the addresses of API servers: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var servers []*apiServer
	for _, address := range endpoints(&list) {
		if at := slices.IndexFunc(p.servers, func(s *apiServer) bool { return s.address == address }); at >= 0 {
			servers = append(servers, p.servers[at])
			continue
		}
		config := rest.CopyConfig(p.config)
		config.Host = (&url.URL{Scheme: "https", Host: address}).String()
		if config.ServerName == "" {
			config.ServerName = "kubernetes.default.svc" // in the certificate of every API server
		}
		s, err := newAPIServer(address, p.namespace, config)
		if err != nil {
			return nil, err
		}
		servers = append(servers, s)
	}
	p.servers, p.listed = servers, time.Now()
	return servers, nil
}

// newAPIServer makes a client for an address. It notes whether an API server accepts connections
// there.
func newAPIServer(address, namespace string, config *rest.Config) (*apiServer, error) {
	s := &apiServer{address: address, proven: question{}}
	dial := config.Dial
	if dial == nil {
		dial = (&net.Dialer{KeepAlive: 30 * time.Second}).DialContext
	}
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		limited, cancel := context.WithTimeout(ctx, connectTimeout)
		defer cancel()
		connection, err := dial(limited, network, address)
		if ctx.Err() == nil {
			s.unreachable.Store(err != nil)
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
	s.configMaps = core.ConfigMaps(namespace)
	return s, nil
}
