package ports

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
)

const (
	// probeAge is how old an answer about readiness may be. A check may cost a
	// handshake, and whoever reaches the port can ask.
	probeAge = time.Second
	// checkTimeout bounds one check.
	checkTimeout = 4 * time.Second
)

// Probes answers a kubelet: /healthz says that the process lives, /readyz
// whether all checks say yes, and /readyz/NAME why one does not. Checks run one
// after the other, at most once a second. It is safe for concurrent use.
type Probes struct {
	log   logr.Logger
	clock clock.PassiveClock

	mu      sync.Mutex
	checks  []*readinessCheck // by name
	checked time.Time
}

type readinessCheck struct {
	name  string
	check healthz.Checker
	asked bool
	err   error
}

// NewProbes returns Probes without checks; the real clock counts if clk is nil.
func NewProbes(log logr.Logger, clk clock.PassiveClock) *Probes {
	if clk == nil {
		clk = clock.RealClock{}
	}
	return &Probes{log: log, clock: clk}
}

// AddReadiness adds a check. Its answer is logged whenever it changes: /readyz
// itself keeps reasons to itself.
func (p *Probes) AddReadiness(name string, check healthz.Checker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.checks = append(p.checks, &readinessCheck{name: name, check: check})
	slices.SortFunc(p.checks, func(a, b *readinessCheck) int { return strings.Compare(a.name, b.name) })
	p.checked = time.Time{}
}

// ServeHTTP answers a probe.
func (p *Probes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.Error(w, "probes are asked by GET", http.StatusMethodNotAllowed)
		return
	}
	switch name, one := strings.CutPrefix(r.URL.Path, "/readyz/"); {
	case r.URL.Path == "/healthz":
		answerProbe(w, nil, "")
	case r.URL.Path == "/readyz":
		_, verbose := r.URL.Query()["verbose"]
		p.answerAll(w, r, verbose)
	case one:
		p.answerOne(w, r, name)
	default:
		http.NotFound(w, r)
	}
}

func (p *Probes) answerAll(w http.ResponseWriter, r *http.Request, verbose bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.run(r)
	var failed error
	var lines strings.Builder
	for _, c := range p.checks {
		if c.err == nil {
			fmt.Fprintf(&lines, "[+]%s ok\n", c.name)
			continue
		}
		failed = c.err
		fmt.Fprintf(&lines, "[-]%s failed: see /readyz/%s\n", c.name, c.name)
	}
	if failed == nil && !verbose {
		lines.Reset()
	}
	answerProbe(w, failed, lines.String())
}

func (p *Probes) answerOne(w http.ResponseWriter, r *http.Request, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.checks {
		if c.name != name {
			continue
		}
		p.run(r)
		if c.err != nil {
			answerProbe(w, c.err, c.err.Error()+"\n")
			return
		}
		answerProbe(w, nil, "")
		return
	}
	http.NotFound(w, r)
}

// run asks the checks, unless they were asked a moment ago.
func (p *Probes) run(r *http.Request) {
	if now := p.clock.Now(); !p.checked.IsZero() && now.Sub(p.checked) < probeAge && now.Sub(p.checked) >= 0 {
		return
	}
	// The answer is for all who ask within the second, whatever becomes of this one.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), checkTimeout)
	defer cancel()
	for _, c := range p.checks {
		before := c.reason()
		first := !c.asked
		c.asked, c.err = true, c.check(r.WithContext(ctx))
		if first || c.reason() != before {
			p.log.Info("Readiness changed", "check", c.name, "ready", c.err == nil, "reason", c.reason())
		}
	}
	p.checked = p.clock.Now()
}

func (c *readinessCheck) reason() string {
	if c.err == nil {
		return ""
	}
	return c.err.Error()
}

func answerProbe(w http.ResponseWriter, failed error, lines string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if failed != nil {
		w.WriteHeader(http.StatusInternalServerError)
	}
	if lines == "" {
		lines = "ok"
	}
	_, _ = w.Write([]byte(lines)) // an error means that the client has gone
}
