package registration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// A probe: a ConfigMap that is created under dry-run only, at every API server.
// +kubebuilder:rbac:roleName=sidecarset-controller,groups="",resources=configmaps,namespace=sidecarset-system,verbs=create
// +kubebuilder:rbac:roleName=sidecarset-controller,groups=discovery.k8s.io,resources=endpointslices,namespace=default,verbs=list

// prober finds out which serials of shards API servers use, and whether they are answered. API
// servers do not report this. So it creates, under dry-run, ConfigMaps that probe webhooks
// select; see podwebhook.ProbeLabel. This tries the whole way of a call: the Service, its endpoints,
// the network, the serving certificate, and a replica that answers. It is safe for concurrent use.
//
// Reviews share questions: an API server is asked about all shards that reviews wait for, in one
// ConfigMap at a time. The leader's questions are apart, because an API server takes a second for
// each shard if no replica answers, and a review waits for half a second.
type prober struct {
	namespace string
	config    *rest.Config
	slices    client.Reader
	host      *apiServer // the one that the operator's other clients use
	reviews   *snapshot.Shared[*apiServer, struct{}]

	mu       sync.Mutex
	servers  []*apiServer // by the addresses that they publish
	listed   time.Time    // when servers was read
	lastCall time.Time    // when a call was last answered
	awaited  map[*awaited]struct{}
}

// awaited is a serial that a review waits for.
type awaited struct {
	label string
	want  func() (serial uint64, err error)
}

// apiServer is one address that API servers answer at.
type apiServer struct {
	address     string
	configMaps  corev1client.ConfigMapInterface
	unreachable atomic.Pointer[unreachable] // nil if the last question was answered
	rate        *rate.Limiter

	// The prober's mu guards these.
	propagated serials // the highest propagated serials
	calls      calls
	refusal    error // why it has refused the last question; nil if it has not
}

// serials are serials of shards by the labels of a probe: what is asked, and what was answered.
type serials map[string]uint64

// staticSerial is the value of podwebhook.LabelStaticProbe of a probe.
const staticSerial = 1

const (
	// serversKept is how long a list of API servers is used.
	serversKept = 10 * time.Second
	// A configuration reaches an API server after 7 to 50 ms. A review asks again after
	// firstProbePause, and then after twice as long each time, up to lastProbePause. The leader goes
	// on to lookInterval.
	firstProbePause = 4 * time.Millisecond
	lastProbePause  = 64 * time.Millisecond
	// maxQuestions is how many questions an API server gets in a second at most, and at the same time. Some
	// 25 SidecarSets that are created one after the other in a second need as many.
	maxQuestions = 100
	// connectTimeout is after how long the prober leaves out an address that accepts no
	// connection: a lost packet is sent again after one second. From then on await waits for
	// the address for unreachablePatience at most.
	connectTimeout      = 2 * time.Second
	unreachablePatience = 100 * time.Millisecond
	// lookTimeout bounds look. While no replica answers, an API server waits one second for the
	// probe webhook of each shard, one after another. Then look asks again about one shard.
	lookTimeout = (podwebhook.Shards + 4) * time.Second
)

// newProber returns a prober that creates ConfigMaps, under dry-run, in a namespace. slices reads
// EndpointSlices.
func newProber(namespace string, config *rest.Config, slices client.Reader) (*prober, error) {
	config = rest.CopyConfig(config)
	if config.Proxy == nil {
		config.Proxy = http.ProxyFromEnvironment
	}
	host, err := newAPIServer(config.Host, namespace, rest.CopyConfig(config))
	p := &prober{namespace: namespace, config: config, slices: slices, host: host, awaited: map[*awaited]struct{}{}}
	p.reviews = snapshot.NewShared(math.MaxInt, p.askAwaited)
	return p, err
}

// passed reports whether every API server that can be reached is known to use a shard at that
// serial or a later one. It asks no API server.
func (p *prober) passed(shard int, serial uint64) bool { return p.unpropagated(shard, serial) == nil }

// counted are the API servers that can be reached, each by its own address, else the configured
// host. The caller holds mu.
func (p *prober) counted() []*apiServer {
	counted := slices.DeleteFunc(slices.Clone(p.servers), func(s *apiServer) bool { return s.unreachable.Load() != nil })
	if len(counted) == 0 {
		return []*apiServer{p.host}
	}
	return counted
}

// unpropagated says why it is not known that every API server that can be reached uses a shard at that
// serial or a later one; nil if it is known. It asks no API server.
func (p *prober) unpropagated(shard int, serial uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, s := range p.counted() {
		if s.propagated[podwebhook.ProbeLabel(shard)] < serial {
			errs = append(errs, cmp.Or(s.refusal, noCall(s, shard, serial)))
		}
	}
	return errors.Join(errs...)
}

func noCall(s *apiServer, shard int, serial uint64) error {
	return fmt.Errorf("the operator has received no call from API server %s for serial %d of MutatingWebhookConfiguration %s yet", s.address, serial, podwebhook.ConfigurationName(shard))
}

// await asks until every API server that can be reached uses the shard at the serial that want
// returns, or a later one, at most until ctx ends. It calls want before each question: the serial
// may have been followed by so many others that its probe webhook does not name it any more. An
// error of want ends it. Several goroutines call want.
func (p *prober) await(ctx context.Context, shard int, want func() (serial uint64, err error)) error {
	w := &awaited{podwebhook.ProbeLabel(shard), want}
	p.mu.Lock()
	p.awaited[w] = struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.awaited, w)
	}()
	return p.each(ctx, func(ctx context.Context, s *apiServer) error { return p.awaitOne(ctx, s, shard, w) })
}

func (p *prober) awaitOne(ctx context.Context, s *apiServer, shard int, w *awaited) error {
	for pause := firstProbePause; ; pause = min(2*pause, lastProbePause) {
		serial, err := w.want()
		if err != nil || p.propagated(s, w.label) >= serial {
			return err
		}
		_, err = p.reviews.Get(ctx, s)
		switch {
		case p.propagated(s, w.label) >= serial:
			return nil
		case err != nil && ctx.Err() == nil:
			return err
		}
		select {
		case <-ctx.Done():
			return noCall(s, shard, serial)
		case <-time.After(pause):
		}
	}
}

// askAwaited asks an API server about all that reviews wait for.
func (p *prober) askAwaited(ctx context.Context, s *apiServer) (none struct{}, err error) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	p.mu.Lock()
	all := slices.Collect(maps.Keys(p.awaited))
	p.mu.Unlock()
	about := serials{}
	for _, w := range all {
		if serial, err := w.want(); err == nil && serial > p.propagated(s, w.label) {
			about[w.label] = max(about[w.label], serial)
		}
	}
	if len(about) > 0 {
		_, err = p.ask(ctx, s, about)
	}
	return none, err
}

// newest are the newest serials of the shards that have webhooks.
func newest(shards *[podwebhook.Shards]*podwebhook.Shard, static bool) serials {
	all := serials{}
	if static {
		all[podwebhook.LabelStaticProbe] = staticSerial
	}
	for i, s := range shards {
		if s != nil && s.Serial > 0 && !s.IsEmpty() {
			all[podwebhook.ProbeLabel(i)] = s.Serial
		}
	}
	return all
}

// askUnpropagated asks every API server about the serials that it is not known to use, in one ConfigMap.
// It reports whether all API servers that can be reached are then known to use them.
func (p *prober) askUnpropagated(ctx context.Context, about serials) (propagated bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	err = p.each(ctx, func(ctx context.Context, s *apiServer) error {
		left := maps.Clone(about)
		maps.DeleteFunc(left, func(label string, serial uint64) bool { return p.propagated(s, label) >= serial })
		if len(left) == 0 {
			return nil
		}
		_, err := p.ask(ctx, s, left)
		return err
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.counted() {
		for label, serial := range about {
			if s.propagated[label] < serial {
				return false, err
			}
		}
	}
	return true, err
}

// look asks every API server about the newest serials of the shards that have webhooks, in one
// ConfigMap. It notes which API servers are answered, and revokes the proof of a shard that an API
// server does not use any more although its other calls are answered: an API server can go back
// to an older version of a shard. With static, it asks by the probe webhook of static mode.
func (p *prober) look(ctx context.Context, shards [podwebhook.Shards]*podwebhook.Shard, static bool) error {
	newest, older := newest(&shards, static), serials{}
	for i, s := range shards {
		if s != nil && newest[podwebhook.ProbeLabel(i)] > 0 && len(s.Earlier) > 0 {
			older = serials{podwebhook.ProbeLabel(i): s.Earlier[len(s.Earlier)-1]}
		}
	}
	if len(newest) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	return p.each(ctx, func(ctx context.Context, s *apiServer) error { return p.lookAt(ctx, s, newest, older) })
}

// each asks all API servers at the same time. If none can be reached by its own address, it asks the
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
			if s.unreachable.Load() != nil {
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
		reached = reached || results[i] == nil || s.unreachable.Load() == nil
		if results[i] != nil && s.unreachable.Load() == nil {
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
func (p *prober) lookAt(ctx context.Context, s *apiServer, newest, older serials) error {
	answered, err := p.ask(ctx, s, newest)
	called := len(answered) > 0
	if err == nil && !called && len(older) > 0 {
		var others serials
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
	maps.DeleteFunc(s.propagated, func(label string, serial uint64) bool { return lost[label] == serial && answered[label] != serial })
	return nil
}

// propagated returns the highest serial of a label that an API server is known to use.
func (p *prober) propagated(s *apiServer, label string) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return s.propagated[label]
}

// ask creates a ConfigMap at an API server, and returns the part of the question by which the API
// server called the operator and was answered. It notes what this proves.
func (p *prober) ask(ctx context.Context, s *apiServer, about serials) (answered serials, err error) {
	probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "sidecarset-probe-", Labels: map[string]string{}}}
	for label, serial := range about {
		probe.Labels[label] = strconv.FormatUint(serial, 10)
	}
	if err := s.rate.Wait(ctx); err != nil {
		return nil, fmt.Errorf("asking API server %s whether it calls the operator: %w", s.address, err)
	}
	answer, err := p.create(ctx, s, probe)
	if err != nil {
		return nil, fmt.Errorf("creating a ConfigMap in namespace %s under dry-run at API server %s, to see whether it calls the operator: %w", p.namespace, s.address, err)
	}
	answered = maps.Clone(about)
	maps.DeleteFunc(answered, func(label string, _ uint64) bool { return answer.Annotations[label] != probe.Labels[label] })
	p.mu.Lock()
	defer p.mu.Unlock()
	for label, serial := range answered {
		s.propagated[label] = max(s.propagated[label], serial)
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
		config.Proxy = noProxy // a proxy leads elsewhere, or nowhere
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

func noProxy(*http.Request) (*url.URL, error) { return nil, nil }

// newAPIServer makes a client for an address. Because of Proxy, the client shares no connections with
// other clients: those of one address lead to one API server.
func newAPIServer(address, namespace string, config *rest.Config) (*apiServer, error) {
	s := &apiServer{address: address, propagated: serials{}, rate: rate.NewLimiter(maxQuestions, maxQuestions)}
	dial := config.Dial
	if dial == nil {
		dial = (&net.Dialer{KeepAlive: 30 * time.Second}).DialContext
	}
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		limited, cancel := context.WithTimeout(ctx, connectTimeout)
		defer cancel()
		connection, err := dial(limited, network, address)
		if err != nil && ctx.Err() == nil {
			s.isUnreachable(err)
		}
		return connection, err
	}
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client for API server %s: %w", address, err)
	}
	s.configMaps = core.ConfigMaps(namespace)
	return s, nil
}
