package entries

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/readiness"
	"github.com/sidecarset/operator/internal/status"
)

// callWatch knows whether replicas answer when API servers call the operator. Every
// callInterval it creates a barrier probe at each API server. This tries the whole way: the
// Service, its endpoints, the network, the serving certificate and a replica that answers.
// The readiness of replicas proves none of that. The zero value knows nothing. It is safe
// for concurrent use.
type callWatch struct {
	mu       sync.Mutex
	silent   map[string]silence // by API server whose last call was not answered
	asked    int                // number of API servers that are known to get an answer, or none
	answered time.Time          // when a call was last answered
}

// silence is the time since which calls of an API server are not answered, and their number.
type silence struct {
	since time.Time
	calls int
}

const (
	// callInterval is the time between two calls.
	callInterval = 10 * time.Second
	// The silence of an API server counts if no call is answered for silentAfter, and if
	// there were at least silentCalls such calls: the leader may have been suspended. Short
	// silences are normal. A replica that crashes does not answer its calls. Nor do replicas
	// on a lost node, until their endpoints are withdrawn.
	silentAfter = time.Minute
	silentCalls = 3
	// callTimeout bounds a call. API servers wait for two seconds.
	callTimeout = 5 * time.Second
)

// run asks API servers by the barrier of the configuration that about returns, until ctx
// ends. It calls changed when the result of problem may differ. If about returns "", run
// asks nothing, and forgets the earlier answers.
func (c *callWatch) run(ctx context.Context, b *barrier, about func() string, changed func()) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		configuration := about()
		if configuration == "" {
			c.forget()
		} else if answers, failed, err := b.answers(ctx, configuration); err == nil &&
			configuration == about() && // if it differs, the configuration may be deleted
			c.note(answers, failed, time.Now()) {
			changed()
		}
	}, callInterval)
}

func (c *callWatch) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silent, c.asked = nil, 0
}

// note updates the state: answers has, by API server, whether its call was answered. The
// API servers in failed could not be asked, so their silence does not change. It reports
// whether the result of problem may differ.
func (c *callWatch) note(answers map[string]bool, failed []string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.silentServers(now)
	if c.silent == nil {
		c.silent = map[string]silence{}
	}
	maps.DeleteFunc(c.silent, func(server string, _ silence) bool {
		_, ok := answers[server]
		return !ok && !slices.Contains(failed, server)
	})
	others := 0
	for server, answered := range answers {
		if answered {
			delete(c.silent, server)
			c.answered = now
			others++
			continue
		}
		s, ok := c.silent[server]
		if !ok {
			s.since = now
		}
		s.calls++
		c.silent[server] = s
	}
	recovered := c.asked == 0 // nothing was known before
	c.asked = others + len(c.silent)
	return recovered || !slices.Equal(before, c.silentServers(now))
}

// silentServers are the API servers whose silence counts.
func (c *callWatch) silentServers(now time.Time) []string {
	var servers []string
	for server, s := range c.silent {
		if s.calls >= silentCalls && now.Sub(s.since) >= silentAfter {
			servers = append(servers, server)
		}
	}
	slices.Sort(servers)
	return servers
}

// proven reports whether a call was answered in the last silentAfter. Then API servers
// accept the certificates that replicas serve, even if they would not accept the certificate
// of this process.
func (c *callWatch) proven(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.answered.IsZero() && now.Sub(c.answered) < silentAfter
}

// problem says which API servers get no answer; nil if none is known.
func (c *callWatch) problem(namespace string, now time.Time) *status.Readiness {
	c.mu.Lock()
	defer c.mu.Unlock()
	servers := c.silentServers(now)
	if len(servers) == 0 {
		return nil
	}
	consequence := "selected Pods are refused, or created without sidecars where " + appsv1beta1.AnnotationFailurePolicy + " is Ignore. " +
		"Look at the operator's Pods in namespace " + namespace + ", at the endpoints of its Service, and at what may keep API servers from reaching them (network policies, firewalls)."
	if len(servers) == c.asked {
		return readiness.No(appsv1beta1.ReasonNoReplica, fmt.Sprintf("No replica of the operator has answered API servers for a minute: %s", consequence))
	}
	return readiness.No(appsv1beta1.ReasonNotInForce, fmt.Sprintf("No replica of the operator has answered API server %s for a minute, though others are answered. Through it, %s",
		strings.Join(servers, ", "), consequence))
}

// answers asks every API server that can be reached whether its calls about a configuration
// are answered. It returns those that could not be asked in failed.
func (b *barrier) answers(ctx context.Context, configuration string) (answers map[string]bool, failed []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	servers, err := b.published(ctx)
	if err != nil {
		return nil, nil, err
	}
	answers, failed = b.answersOf(ctx, servers, configuration)
	if len(answers) > 0 {
		return answers, failed, nil
	}
	host, err := b.configured()
	if err != nil {
		return nil, nil, err
	}
	if answers, _ = b.answersOf(ctx, []*apiServer{host}, configuration); len(answers) == 0 {
		return nil, nil, errors.New("no API server can be asked")
	}
	return answers, failed, nil
}

func (b *barrier) answersOf(ctx context.Context, servers []*apiServer, configuration string) (answers map[string]bool, failed []string) {
	serials, errs := make([]int64, len(servers)), make([]error, len(servers))
	var all sync.WaitGroup
	for i, s := range servers {
		all.Go(func() { serials[i], errs[i] = b.probe(ctx, s, configuration) })
	}
	all.Wait()
	answers = map[string]bool{}
	for i, s := range servers {
		if errs[i] == nil {
			answers[s.address] = serials[i] > 0
		} else {
			failed = append(failed, s.address)
		}
	}
	return answers, failed
}
